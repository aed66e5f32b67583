"""Takes out of an ONNX file what says where and how it was made: documentation, metadata, source lines."""

import onnx


def tidy(path):
    model = onnx.load(path)
    model.doc_string = model.graph.doc_string = ""
    del model.metadata_props[:], model.graph.metadata_props[:]
    for item in (*model.graph.node, *model.graph.input, *model.graph.output, *model.graph.value_info, *model.functions):
        item.doc_string = ""
        del item.metadata_props[:]
    for function in model.functions:
        for node in function.node:
            node.doc_string = ""
            del node.metadata_props[:]
    onnx.save(model, path)
