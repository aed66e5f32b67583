"""Takes out of an ONNX file what says where and how it was made: documentation, metadata, source lines."""

import onnx


def tidied(model):
    """The model without any; what `compare.py` reads stays."""
    model.doc_string = model.graph.doc_string = ""
    sizes = [entry.value for entry in model.metadata_props if entry.key == "sizes"]
    onnx.helper.set_model_props(model, {"sizes": value for value in sizes})
    del model.graph.metadata_props[:]
    for item in (*model.graph.node, *model.graph.input, *model.graph.output, *model.graph.value_info, *model.functions):
        item.doc_string = ""
        del item.metadata_props[:]
    for tensor in model.graph.initializer:
        tensor.doc_string = ""
    for function in model.functions:
        for node in function.node:
            node.doc_string = ""
            del node.metadata_props[:]
    return model


def tidy(path):
    onnx.save(tidied(onnx.load(path)), path)
