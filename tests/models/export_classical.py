"""Trains small scikit-learn, XGBoost and LightGBM models on the datasets that scikit-learn ships, and exports them to
ONNX with rows to compare on. Each is held against what the model itself predicts.

Usage: python export_classical.py FOLDER        (needs FOLDER/requirements.txt, which the test suite does not)

writes NAME.onnx, and NAME.npz with the inputs of some rows.
"""

import pathlib
import sys
import warnings

import numpy as np
import onnx
import onnxruntime as ort
from lightgbm import LGBMClassifier, LGBMRegressor
from onnx import helper
from onnxmltools.convert.lightgbm.operator_converters.LightGbm import convert_lightgbm
from onnxmltools.convert.xgboost.operator_converters.XGBoost import convert_xgboost
from skl2onnx import convert_sklearn, update_registered_converter
from skl2onnx.common.data_types import DoubleTensorType, FloatTensorType, Int64TensorType
from skl2onnx.common.shape_calculator import calculate_linear_classifier_output_shapes, calculate_linear_regressor_output_shapes
from sklearn import calibration, cluster, datasets, ensemble, linear_model, multiclass, naive_bayes, neighbors, neural_network, svm, tree
from sklearn.compose import ColumnTransformer
from sklearn.decomposition import PCA
from sklearn.impute import SimpleImputer
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import Binarizer, MinMaxScaler, Normalizer, OneHotEncoder, OrdinalEncoder, StandardScaler
from tidy import tidy
from xgboost import XGBClassifier, XGBRegressor

ROWS = 23


def plain(key, value, *rest, make=helper.make_attribute, **named):
    """Truth values among the numbers of a list are refused."""
    if isinstance(value, list):
        value = [int(item) if isinstance(item, (bool, np.bool_)) else item for item in value]
    return make(key, value, *rest, **named)


helper.make_attribute = plain
OPSETS = {"": 18, "ai.onnx.ml": 3}

CLASSES = {"nocl": [True, False], "zipmap": [True, False, "columns"]}
update_registered_converter(XGBClassifier, "XGBClassifier", calculate_linear_classifier_output_shapes, convert_xgboost, options=CLASSES)
update_registered_converter(LGBMClassifier, "LGBMClassifier", calculate_linear_classifier_output_shapes, convert_lightgbm, options=CLASSES)
update_registered_converter(XGBRegressor, "XGBRegressor", calculate_linear_regressor_output_shapes, convert_xgboost)
update_registered_converter(LGBMRegressor, "LGBMRegressor", calculate_linear_regressor_output_shapes, convert_lightgbm, options={"split": None})

IRIS, WINE = datasets.load_iris(return_X_y=True), datasets.load_wine(return_X_y=True)
CANCER, DIABETES = datasets.load_breast_cancer(return_X_y=True), datasets.load_diabetes(return_X_y=True)
DIGITS = datasets.load_digits(return_X_y=True)


def holed(data):
    """The same with some numbers missing."""
    x, y = data
    x = x.copy()
    x[np.random.default_rng(0).random(x.shape) < 0.1] = np.nan
    return x, y


def binned():
    """Two columns of categories and two of numbers."""
    x, y = IRIS
    return np.column_stack([np.floor(x[:, :2]), x[:, 2:]]), y


def named(data, names):
    x, y = data
    return x, np.array(names)[y]


R = {"random_state": 0}
# For each the model, what it is trained on, and how it is exported: without maps of scores unless it is said otherwise.
MODELS = {
    "logistic_binary": (make_pipeline(StandardScaler(), linear_model.LogisticRegression()), CANCER, {}),
    "logistic_multi": (make_pipeline(StandardScaler(), linear_model.LogisticRegression()), WINE, {"zipmap": True}),
    "logistic_names": (linear_model.LogisticRegression(max_iter=1000), named(IRIS, ["setosa", "versicolor", "virginica"]), {"zipmap": True}),
    "ridge_classifier": (make_pipeline(StandardScaler(), linear_model.RidgeClassifier()), WINE, {}),
    "sgd_hinge": (make_pipeline(StandardScaler(), linear_model.SGDClassifier(**R)), WINE, {}),
    "linear_regression": (linear_model.LinearRegression(), DIABETES, {}),
    "linear_double": (make_pipeline(MinMaxScaler(), linear_model.Ridge()), DIABETES, {"type": DoubleTensorType}),
    "linear_svc": (svm.LinearSVC(**R), IRIS, {}),
    "svc_probability": (make_pipeline(StandardScaler(), svm.SVC(probability=True, **R)), IRIS, {}),
    "svc_binary": (make_pipeline(StandardScaler(), PCA(4, **R), svm.SVC(kernel="poly")), CANCER, {}),
    "svc_sigmoid": (make_pipeline(StandardScaler(), svm.SVC(kernel="sigmoid")), IRIS, {}),
    "svr": (make_pipeline(StandardScaler(), svm.SVR(C=10)), (DIABETES[0][:90], DIABETES[1][:90]), {}),
    "one_class_svm": (svm.OneClassSVM(nu=0.2), (IRIS[0], None), {}),
    "decision_tree": (tree.DecisionTreeClassifier(**R), IRIS, {"zipmap": True}),
    "forest_classifier": (ensemble.RandomForestClassifier(12, max_depth=5, **R), WINE, {}),
    "forest_binary": (ensemble.RandomForestClassifier(10, max_depth=4, **R), CANCER, {}),
    "forest_names": (ensemble.RandomForestClassifier(7, max_depth=4, **R), named(IRIS, ["a", "b", "c"]), {}),
    "forest_regressor": (ensemble.RandomForestRegressor(10, max_depth=4, **R), DIABETES, {}),
    "forest_double": (ensemble.RandomForestClassifier(5, max_depth=4, **R), WINE, {"type": DoubleTensorType}),
    "extra_trees": (ensemble.ExtraTreesClassifier(10, max_depth=4, **R), WINE, {}),
    "gradient_boosting": (ensemble.GradientBoostingClassifier(n_estimators=8, max_depth=3, **R), WINE, {}),
    "gradient_boosting_binary": (ensemble.GradientBoostingClassifier(n_estimators=10, max_depth=3, **R), CANCER, {}),
    "gradient_boosting_regressor": (ensemble.GradientBoostingRegressor(n_estimators=12, max_depth=3, **R), DIABETES, {}),
    "hist_boosting": (ensemble.HistGradientBoostingClassifier(max_iter=6, max_leaf_nodes=8, **R), holed(WINE), {}),
    "hist_boosting_regressor": (ensemble.HistGradientBoostingRegressor(max_iter=10, max_leaf_nodes=8, **R), holed(DIABETES), {}),
    "ada_boost": (ensemble.AdaBoostRegressor(n_estimators=4, **R), DIABETES, {}),
    "bagging": (ensemble.BaggingRegressor(tree.DecisionTreeRegressor(max_depth=3), n_estimators=4, **R), DIABETES, {}),
    "voting": (ensemble.VotingRegressor([("a", linear_model.Ridge()), ("b", tree.DecisionTreeRegressor(max_depth=3))]), DIABETES, {}),
    "isolation_forest": (ensemble.IsolationForest(n_estimators=3, max_samples=40, **R), (IRIS[0], None), {}),
    "ada_classifier": (ensemble.AdaBoostClassifier(n_estimators=3, **R), IRIS, {}),
    "stacking": (ensemble.StackingClassifier([("a", linear_model.LogisticRegression()), ("b", tree.DecisionTreeClassifier(max_depth=3))]), IRIS, {}),
    "calibrated": (calibration.CalibratedClassifierCV(tree.DecisionTreeClassifier(max_depth=3, **R), cv=2), IRIS, {}),
    "one_vs_rest": (multiclass.OneVsRestClassifier(linear_model.LogisticRegression()), IRIS, {}),
    "k_means": (cluster.KMeans(3, n_init=1, **R), (IRIS[0], None), {}),
    "mlp": (make_pipeline(Normalizer(), neural_network.MLPClassifier([12], max_iter=300, **R)), IRIS, {}),
    "mlp_regressor": (make_pipeline(StandardScaler(), neural_network.MLPRegressor(hidden_layer_sizes=[8], max_iter=300, **R)), DIABETES, {}),
    "naive_bayes": (naive_bayes.GaussianNB(), IRIS, {}),
    "neighbors": (make_pipeline(StandardScaler(), neighbors.KNeighborsClassifier(5)), IRIS, {}),
    "neighbors_regressor": (neighbors.KNeighborsRegressor(4, metric="manhattan"), (DIABETES[0][:120], DIABETES[1][:120]), {}),
    "pca_digits": (make_pipeline(PCA(6, whiten=True, **R), linear_model.LogisticRegression(max_iter=500)), DIGITS, {}),
    "imputed": (make_pipeline(SimpleImputer(), StandardScaler(), linear_model.LogisticRegression()), holed(WINE), {}),
    "binarized": (make_pipeline(Binarizer(threshold=3.0), linear_model.LogisticRegression()), IRIS, {}),
    "normalized_l1": (make_pipeline(Normalizer("l1"), linear_model.LogisticRegression()), IRIS, {}),
    "columns": (
        make_pipeline(
            ColumnTransformer([("categories", OneHotEncoder(handle_unknown="ignore"), [0, 1]), ("numbers", StandardScaler(), [2, 3])]),
            linear_model.LogisticRegression(),
        ),
        binned(),
        {"columns": [("categories", Int64TensorType, [0, 1]), ("numbers", FloatTensorType, [2, 3])]},
    ),
    "ordinal": (make_pipeline(OrdinalEncoder(), linear_model.LogisticRegression()), (np.floor(IRIS[0]), IRIS[1]), {"type": Int64TensorType}),
    "xgb_multi": (XGBClassifier(n_estimators=5, max_depth=3), WINE, {}),
    "xgb_binary": (XGBClassifier(n_estimators=8, max_depth=3), holed(CANCER), {}),
    "xgb_regressor": (XGBRegressor(n_estimators=10, max_depth=3), DIABETES, {}),
    "lgbm_multi": (LGBMClassifier(n_estimators=5, num_leaves=7, verbose=-1), WINE, {}),
    "lgbm_binary": (LGBMClassifier(n_estimators=8, num_leaves=7, verbose=-1), holed(CANCER), {"zipmap": True}),
    "lgbm_regressor": (LGBMRegressor(n_estimators=10, num_leaves=7, verbose=-1), holed(DIABETES), {}),
}


def inputs_of(x, how):
    """The inputs by name, with their types."""
    columns = how.get("columns") or [("x", how.get("type", FloatTensorType), range(x.shape[1]))]
    kinds = {FloatTensorType: np.float32, DoubleTensorType: np.float64, Int64TensorType: np.int64}
    types = [(name, kind([None, len(places)])) for name, kind, places in columns]
    return types, {name: x[:, list(places)].astype(kinds[kind]) for name, kind, places in columns}


def export(name, folder):
    model, (x, y), how = MODELS[name]
    x = x.astype(np.float32).astype(np.float64)
    model.fit(x, y)
    types, arrays = inputs_of(x, how)
    final = model[-1] if hasattr(model, "steps") else model
    # A regressor, and what has no scores, has no maps to leave out.
    zipmap = how.get("zipmap", False) if hasattr(final, "predict_proba") else None
    options = {} if zipmap is None else {id(model): {"zipmap": zipmap}}
    made = convert_sklearn(model, name, types, target_opset=OPSETS, options=options or None)
    path = folder / f"{name}.onnx"
    onnx.save(made, path)
    tidy(path)
    rows = np.random.default_rng(1).choice(len(x), ROWS, replace=False)
    given = {key: np.ascontiguousarray(array[rows]) for key, array in arrays.items()}
    np.savez_compressed(folder / f"{name}.npz", **given)
    session = ort.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    found, wanted = session.run(None, given)[0], model.predict(x[rows])
    if found.dtype.kind == "f":
        error = np.abs(found.ravel() - wanted).max() / np.abs(wanted).max()
        assert error < 1e-4, f"{error} from what the model predicts"
    else:
        assert (found.ravel() == wanted).all(), "other labels than the model predicts"
    return path.stat().st_size + (folder / f"{name}.npz").stat().st_size, sorted({n.op_type for n in made.graph.node})


def main(folder, *names):
    warnings.filterwarnings("ignore")
    total = 0
    for name in names or MODELS:
        size, operators = export(name, pathlib.Path(folder))
        total += size
        print(f"{name}: {size} bytes, {' '.join(operators)}", flush=True)
    print(f"{total} bytes")


if __name__ == "__main__":
    main(*sys.argv[1:])
