use std::io::Read;
use std::path::{Path, PathBuf};

use super::images::Extent;
use super::resize::{resized, with_channels};
use super::{Column, DataError, Layout, Resize, RowMut, Source, decode_image};
use crate::format::{FileError, open};
use crate::ir::Graph;
use crate::types::DType;

/// The largest file of an image that is read.
const MAX_FILE: u64 = 256 << 20;

/// The largest depth of folders inside the folder of a class.
const MAX_DEPTH: usize = 16;

/// Options for the images of a folder.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FolderOptions {
    /// The height that all get.
    pub height: usize,
    /// The width that all get.
    pub width: usize,
    /// 3 for colours, 1 for shades of grey.
    pub channels: usize,
    /// The order of the axes.
    pub layout: Layout,
    /// The interpolation for images of other sizes.
    pub resize: Resize,
    /// The most pixels that an image in a file may have.
    pub max_pixels: u64,
    /// The names of the classes in the order of their numbers, as [`Source::classes`] of the data
    /// to train on; without any those of the folder. A folder of another name is an error.
    pub classes: Vec<String>,
}

impl FolderOptions {
    /// Images in colours of these sizes, channels first.
    pub fn new(height: usize, width: usize) -> Self {
        let (layout, resize) = (Layout::default(), Resize::default());
        let classes = Vec::new();
        Self { height, width, channels: 3, layout, resize, max_pixels: 64 << 20, classes }
    }

    /// Images as a model with one input of images takes them, in colours or grey; `None` for
    /// others.
    pub(crate) fn of(model: &Graph) -> Option<Self> {
        let rows = model.inputs().filter_map(|v| Column::of("x", model.ty(v)));
        let images: Vec<Column> = rows.filter(|row| row.dims.len() == 3).collect();
        let [row] = images.as_slice() else { return None };
        let few = |size: usize| matches!(size, 1 | 3);
        let (layout, [channels, height, width]) = match row.dims[..] {
            [a, b, c] if few(a) => (Layout::ChannelsFirst, [a, b, c]),
            [a, b, c] if few(c) => (Layout::ChannelsLast, [c, a, b]),
            _ => return None,
        };
        Some(Self { channels, layout, ..Self::new(height, width) })
    }
}

/// The images of a folder that has a folder for each class: `x`, `f32` from 0 to 255, and the
/// number `y` of the class, `i64`, in the order of the names. PNG and JPEG files are taken, those
/// in folders below as well, in the order of their paths; other files are left out. An image is
/// decoded when it is used. Images without classes, a file or those that lie in the folder itself,
/// have no `y`.
#[derive(Clone, Debug)]
pub struct Folder {
    columns: Vec<Column>,
    images: Vec<(PathBuf, i64)>,
    classes: Vec<String>,
    options: FolderOptions,
}

impl Folder {
    /// The images of a folder.
    ///
    /// # Errors
    /// If the folder cannot be read, has no images or a class that is not among those given, or the
    /// sizes are 0 or too large.
    pub fn new(path: &Path, options: FolderOptions) -> Result<Self, DataError> {
        let FolderOptions { height, width, channels, layout, .. } = options;
        if height == 0 || width == 0 || !matches!(channels, 1 | 3) {
            let sizes = format!("{height} by {width} pixels of {channels} channels");
            return Err(DataError::Setting(format!("there are no images of {sizes}")));
        }
        let columns = vec![
            Column::new("x", DType::F32, &layout.dims(channels, height, width)),
            Column::new("y", DType::I64, &[]),
        ];
        super::column::check(&columns)?;
        if is_image(path) && !path.is_dir() {
            return Ok(Self::unlabelled(vec![path.to_owned()], columns, options));
        }
        let (mut images, mut classes) = (Vec::new(), Vec::new());
        for class in entries(path)?.into_iter().filter(|entry| entry.is_dir()) {
            let number = classes.len();
            let mut files = Vec::new();
            collect(&class, 0, &mut files)?;
            images.extend(files.into_iter().map(|file| (file, number)));
            let name = class.file_name().unwrap_or_default();
            classes.push(super::classes::name(name.as_encoded_bytes()));
        }
        let own: Vec<PathBuf> = entries(path)?.into_iter().filter(|file| is_image(file)).collect();
        if images.is_empty() && !own.is_empty() {
            return Ok(Self::unlabelled(own, columns, options));
        }
        if images.is_empty() {
            let reason =
                "it has no PNG or JPEG files; put them into it, or into a folder for each class";
            return Err(FileError::content(path, reason).into());
        }
        let (numbers, classes) = super::classes::numbered(classes, &options.classes)
            .map_err(|reason| FileError::content(path, reason))?;
        let images = images.into_iter().map(|(file, class)| (file, numbers[class])).collect();
        Ok(Self { columns, images, classes, options })
    }

    /// Images without classes.
    fn unlabelled(files: Vec<PathBuf>, mut columns: Vec<Column>, options: FolderOptions) -> Self {
        columns.truncate(1);
        let images = files.into_iter().map(|file| (file, 0)).collect();
        Self { columns, images, classes: Vec::new(), options }
    }
}

/// The files beside the folders of classes that are left out, if there are images among them.
#[cfg(feature = "cli")]
pub(crate) fn left_out(folder: &Path) -> Result<Vec<PathBuf>, DataError> {
    let (folders, files): (Vec<PathBuf>, Vec<PathBuf>) =
        entries(folder)?.into_iter().partition(|entry| entry.is_dir());
    let has_images = files.iter().any(|file| is_image(file) || is_other_image(file));
    Ok(if folders.is_empty() || !has_images { Vec::new() } else { files })
}

/// True for a path with the ending of an image in a form that is not read.
pub(crate) fn is_other_image(path: &Path) -> bool {
    has_ending(path, &["gif", "webp", "bmp", "tif", "tiff", "heic", "avif"])
}

/// True for a path with the ending of an image.
pub(crate) fn is_image(path: &Path) -> bool {
    has_ending(path, &["png", "jpg", "jpeg"])
}

fn has_ending(path: &Path, endings: &[&str]) -> bool {
    // A name without an ending is that of no image.
    let kind = path.extension().and_then(|kind| kind.to_str()).unwrap_or_default();
    endings.iter().any(|known| known.eq_ignore_ascii_case(kind))
}

/// The entries of a folder by name, without hidden ones.
fn entries(folder: &Path) -> Result<Vec<PathBuf>, DataError> {
    let failed = |e| FileError::read(folder, e);
    let mut paths = Vec::new();
    for entry in std::fs::read_dir(folder).map_err(failed)? {
        let entry = entry.map_err(failed)?;
        if !entry.file_name().to_string_lossy().starts_with('.') {
            paths.push(entry.path());
        }
    }
    paths.sort();
    Ok(paths)
}

/// The images below a folder.
fn collect(folder: &Path, depth: usize, files: &mut Vec<PathBuf>) -> Result<(), DataError> {
    if depth > MAX_DEPTH {
        let reason = format!("it is more than {MAX_DEPTH} folders below the folder of its class");
        return Err(FileError::content(folder, reason).into());
    }
    for path in entries(folder)? {
        if path.is_dir() {
            collect(&path, depth + 1, files)?;
        } else if is_image(&path) {
            files.push(path);
        }
    }
    Ok(())
}

/// The bytes of a file.
fn read(path: &Path) -> Result<Vec<u8>, FileError> {
    let (file, size) = open(path)?;
    if size > MAX_FILE {
        let reason = format!("an image in {size} bytes; {MAX_FILE} are allowed");
        return Err(FileError::content(path, reason));
    }
    let mut data = Vec::new();
    file.take(size).read_to_end(&mut data).map_err(|e| FileError::read(path, e))?;
    Ok(data)
}

impl Source for Folder {
    fn columns(&self) -> &[Column] {
        &self.columns
    }

    fn rows(&self) -> usize {
        self.images.len()
    }

    fn classes(&self) -> &[String] {
        &self.classes
    }

    fn place(&self, row: usize) -> (Option<&str>, usize) {
        match self.images.get(row).and_then(|(path, _)| path.to_str()) {
            Some(path) => (Some(path), 0),
            None => (None, row),
        }
    }

    fn read(&self, row: usize, into: &mut RowMut<'_>) -> Result<(), DataError> {
        let Some((path, class)) = self.images.get(row) else {
            return Err(DataError::row(row as u64, "there is no such row"));
        };
        let FolderOptions { height, width, channels, layout, resize, max_pixels, .. } =
            self.options;
        let pixels = decode_image(&read(path)?, path, max_pixels)?;
        let &[h, w, found] = pixels.dims() else {
            return Err(FileError::content(path, "it has no channels").into());
        };
        let pixels = with_channels(pixels.bytes(), found, channels);
        let image = resized(
            &pixels,
            channels,
            Extent { height: h, width: w },
            Extent { height, width },
            resize,
        );
        match layout {
            Layout::ChannelsLast => into.write(0, &image)?,
            Layout::ChannelsFirst => into.write(0, &super::images::turned(&image, channels))?,
        }
        if self.columns.len() == 1 { Ok(()) } else { into.write(1, &[*class]) }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::super::decode::tests::encode;
    use super::super::source::row;
    use super::{Folder, FolderOptions, Layout, Source};
    use crate::types::Tensor;

    fn write(path: &std::path::Path, value: u8) {
        let pixels = Tensor::new(&[1, 2, 3], &[value, 0, 0, 0, value, 9]).unwrap();
        fs::write(path, encode(&pixels, png::ColorType::Rgb, png::BitDepth::Eight)).unwrap();
    }

    #[test]
    fn classes_are_folders_in_the_order_of_their_names() {
        let folder = tempfile::tempdir().unwrap();
        let options = FolderOptions::new(1, 2);
        assert!(Folder::new(folder.path(), options.clone()).is_err());
        for name in ["dog", "cat/deep", "empty", ".hidden"] {
            fs::create_dir_all(folder.path().join(name)).unwrap();
        }
        write(&folder.path().join("dog/1.PNG"), 1);
        write(&folder.path().join("cat/b.png"), 2);
        write(&folder.path().join("cat/deep/a.png"), 3);
        write(&folder.path().join(".hidden/a.png"), 4);
        fs::write(folder.path().join("cat/notes.txt"), "none").unwrap();
        fs::write(folder.path().join("labels.csv"), "none").unwrap();
        let read = |options: FolderOptions| -> Vec<(i64, Vec<f32>)> {
            let source = Folder::new(folder.path(), options).unwrap();
            assert_eq!(source.classes(), ["cat", "dog", "empty"]);
            let read = |number| {
                let row = row(&source, number).unwrap();
                (row[1].as_slice::<i64>()[0], row[0].as_slice::<f32>().to_vec())
            };
            (0..source.rows()).map(read).collect()
        };
        let image = |v: u8| [v, 0, 0, v, 0, 9].map(f32::from).to_vec();
        assert_eq!(read(options.clone()), [(0, image(2)), (0, image(3)), (1, image(1))]);
        let last = FolderOptions { layout: Layout::ChannelsLast, ..options.clone() };
        assert_eq!(read(last)[2].1, [1u8, 0, 0, 0, 1, 9].map(f32::from));
        let grey = FolderOptions { channels: 1, height: 2, width: 1, ..options.clone() };
        assert_eq!(read(grey)[0].1, [1.5, 1.5]);
        for wrong in [
            FolderOptions { height: 0, ..options.clone() },
            FolderOptions { channels: 2, ..options.clone() },
            FolderOptions { height: usize::MAX, width: usize::MAX, ..options.clone() },
        ] {
            assert!(Folder::new(folder.path(), wrong).is_err());
        }
        let known = ["ant", "dog", "empty", "cat"].map(str::to_owned).to_vec();
        let by_others = FolderOptions { classes: known.clone(), ..options.clone() };
        let source = Folder::new(folder.path(), by_others).unwrap();
        assert_eq!(source.classes(), known);
        let number = |at| row(&source, at).unwrap()[1].as_slice::<i64>()[0];
        assert_eq!([0, 1, 2].map(number), [3, 3, 1]);
        let few = FolderOptions { classes: known[..2].to_vec(), ..options.clone() };
        let error = Folder::new(folder.path(), few).unwrap_err().to_string();
        assert!(error.contains("its classes `cat`, `empty` have no index"), "{error}");
        #[cfg(feature = "cli")]
        {
            // Without images nothing is missed.
            assert!(super::left_out(folder.path()).unwrap().is_empty());
            fs::write(folder.path().join("top.gif"), "none").unwrap();
            let left = super::left_out(folder.path()).unwrap();
            assert_eq!(left, ["labels.csv", "top.gif"].map(|name| folder.path().join(name)));
            assert!(super::left_out(&folder.path().join("dog")).unwrap().is_empty());
        }
        let few = FolderOptions { max_pixels: 1, ..options };
        let source = Folder::new(folder.path(), few).unwrap();
        let error = row(&source, 0).unwrap_err();
        assert!(error.to_string().contains("b.png`: an image has 1 by 2 pixels"), "{error}");
    }
}
