"""Makes the wheel of the package with a library that is built already: `wheel.py LIBRARY FOLDER`.

`maturin build` builds the library itself, with settings of its own; the tests have one in their
profile.
"""

import base64
import hashlib
import sys
import sysconfig
import tomllib
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def metadata(project: dict) -> str:
    lines = ["Metadata-Version: 2.4", f"Name: {project['name']}", f"Version: {project['version']}"]
    lines += [f"Requires-Python: {project['requires-python']}"]
    lines += [f"Requires-Dist: {wanted}" for wanted in project["dependencies"]]
    return "\n".join(lines) + "\n"


def files(library: Path, project: dict, tag: str) -> dict[str, bytes]:
    package = ROOT / "python"
    sources = [path for path in package.rglob("*") if path.suffix in {".py", ".pyi", ".typed"}]
    sources += package.rglob("py.typed")
    found = {str(path.relative_to(package)): path.read_bytes() for path in sorted(set(sources))}
    found["fanwise/_fanwise.abi3.so"] = library.read_bytes()
    info = f"{project['name']}-{project['version']}.dist-info"
    scripts = [f"{name} = {entry}" for name, entry in project["scripts"].items()]
    wheel = ["Wheel-Version: 1.0", "Generator: fanwise", "Root-Is-Purelib: false", f"Tag: {tag}"]
    found[f"{info}/METADATA"] = metadata(project).encode()
    found[f"{info}/WHEEL"] = ("\n".join(wheel) + "\n").encode()
    entries = ["[console_scripts]", *scripts]
    for group, points in project["entry-points"].items():
        entries += [f"[{group}]", *(f"{name} = {entry}" for name, entry in points.items())]
    found[f"{info}/entry_points.txt"] = "\n".join([*entries, ""]).encode()
    record = [f"{name},sha256={digest(data)},{len(data)}" for name, data in found.items()]
    found[f"{info}/RECORD"] = "\n".join([*record, f"{info}/RECORD,,", ""]).encode()
    return found


def digest(data: bytes) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()


def main(library: str, folder: str) -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    platform = sysconfig.get_platform().replace("-", "_").replace(".", "_")
    tag = f"cp311-abi3-{platform}"
    path = Path(folder) / f"{project['name']}-{project['version']}-{tag}.whl"
    with zipfile.ZipFile(path, "w") as archive:
        for name, data in files(Path(library), project, tag).items():
            archive.writestr(name, data)
    print(path)


if __name__ == "__main__":
    main(*sys.argv[1:])
