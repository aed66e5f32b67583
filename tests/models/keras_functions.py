"""The groups of `keras_layers.py` that hold functions of `keras.ops`, and the layers that do the same."""

import keras
import numpy as np
from keras import layers as L
from keras import ops as O

GROUPS = {}


def group(make):
    GROUPS[make.__name__] = make
    return make


def each(x, layers):
    return [layer(x) for layer in layers]


@group
def functions():
    x, y, i, image = keras.Input((4, 6), name="x"), keras.Input((4, 6), name="y"), keras.Input((4,), dtype="int32", name="i"), keras.Input((4, 4, 3), name="image")
    c = L.Conv2D(4, 3, padding="same")(image)
    outputs = [x[:, 0], x[:, 1:3, ::2], x[..., None], x[:, -2:], O.transpose(x, (0, 2, 1)), O.reshape(x, (-1, 24)), O.reshape(x, (-1, 6)) * 1.0, O.mean(x, axis=-1, keepdims=True), O.sum(x, axis=[1, 2]), O.concatenate([x, y], axis=1), O.stack([x, y], axis=1),
               O.expand_dims(x, 1), O.squeeze(O.expand_dims(x, 1), 1), O.matmul(x, O.swapaxes(y, 1, 2)) if False else O.matmul(x, O.transpose(y, (0, 2, 1))), O.einsum("abc,abd->acd", x, y), O.cast(i, "float32"), O.where(x > 0, x, y), 2.0 / O.exp(x), x**2, 1 - x,
               O.softmax(x), O.gelu(x), O.clip(x, 0, 1), O.split(x, 2, axis=2)[1], O.max(x, axis=1), O.sqrt(O.abs(x)), O.logical_not(x > 1), O.relu(x), O.silu(x), O.log_softmax(x, axis=1), O.var(x, axis=1), O.flip(x, axis=1), O.leaky_relu(x, 0.3),
               O.add(x, y), O.moveaxis(x, 1, 2), O.minimum(x, 0.0), O.sign(x), i + 1, i * 0.5, c + 1.0, c * c, O.relu(c), O.mean(c, axis=(1, 2)), c[:, 1], O.logical_and(x > 0, y > 0), O.floor(x), O.sigmoid(x), O.tanh(x), O.rsqrt(O.abs(x) + 1.0), x / y, O.maximum(x, y), O.std(x, axis=-1)]
    return keras.Model([x, y, i, image], outputs)


@group
def numeric():
    """Functions of `keras.ops` of single numbers and of pairs of them."""
    x, y, i = keras.Input((4, 6), name="x"), keras.Input((4, 6), name="y"), keras.Input((4, 6), dtype="int32", name="i")
    unit, far, j = O.tanh(x), x * 40.0, i - 3
    outputs = [f(x) for f in (O.tan, O.arctan, O.sinh, O.cosh, O.arcsinh, O.exp2, O.expm1, O.deg2rad, O.rad2deg, O.trunc, O.isfinite, O.celu, O.hard_shrink, O.soft_shrink, O.copy)]
    outputs += [f(unit) for f in (O.arcsin, O.arccos, O.arctanh)] + [O.arccosh(O.abs(x) + 1.0), O.log2(O.abs(x)), O.log10(O.abs(x)), O.expm1(x * 1e-6), O.threshold(x, 0.2, 7.0)]
    broken = O.log(x)
    outputs += [O.isnan(broken), O.isinf(O.exp(far * 9)), O.nan_to_num(broken, 5.0), O.logical_xor(x > 0, y > 0), O.bitwise_and(i, j), O.bitwise_or(i, j), O.bitwise_xor(x > 0, y > 0), O.bitwise_not(i), O.mod(far, y), O.mod(j, i + 1), O.floor_divide(far, 3.0), O.floor_divide(j, i + 1)]
    outputs += [O.divide_no_nan(x, O.relu(y)), O.logaddexp(x, far), O.hypot(x, far), O.arctan2(x, y), O.arctan2(O.relu(x), -O.relu(y)), O.amax(x, 1), O.amin(x, (1, 2)), O.fmod(far, y)]
    return keras.Model([x, y, i], outputs)


@group
def arranging():
    """Functions of `keras.ops` that order, choose, repeat and sum up along axes."""
    x, i, image = keras.Input((4, 6), name="x"), keras.Input((4,), dtype="int32", name="i"), keras.Input((6, 6, 3), name="image")
    outputs = [O.prod(x, 1), O.logsumexp(x, axis=(1, 2)), O.ptp(x, axis=1), O.count_nonzero(i, axis=1), O.argmax(x, axis=1), O.argmin(x, axis=-1, keepdims=True), O.sort(x, axis=1), O.argsort(x), O.argsort(x, axis=1), *O.top_k(x, 3), O.cumsum(x, axis=1), O.cumprod(x, axis=-1), O.cumsum(i, axis=1)]
    outputs += [O.tile(x, (1, 2, 3)), O.tile(x, 2), O.repeat(x, 3, axis=1), O.roll(x, 2, axis=1), O.roll(x, (-1, 3), axis=(1, 2)), O.swapaxes(x, 1, 2), O.take(x, [1, -1, 0], axis=2), O.take_along_axis(x, O.argsort(x, axis=1), axis=1), O.one_hot(i, 4), O.one_hot(i - 1, 5, axis=1), O.tril(x), O.triu(x, k=1)]
    outputs += [O.pad(x, ((0, 0), (1, 2), (0, 1))), O.pad(x, ((0, 0), (1, 2), (2, 1)), mode="reflect"), O.pad(x, ((0, 0), (1, 0), (0, 1)), constant_values=2.5), *O.unstack(x, axis=1), O.norm(x, axis=(1, 2)), O.normalize(x), O.normalize(x, axis=1), O.average(x, axis=1), *O.moments(x, axes=[1]), O.full_like(x, 2.5), O.hstack([x, x])]
    outputs += [O.max_pool(image, 2, strides=2), O.average_pool(image, (2, 3), strides=1, padding="same"), O.max_pool(x, 2, strides=1)]
    return keras.Model([x, i, image], outputs)


@group
def special():
    """Functions of `keras.ops` that few models use: of single numbers, and those that leave out NaN or look places up."""
    x, y, i = keras.Input((4, 6), name="x"), keras.Input((4, 6), name="y"), keras.Input((4, 6), dtype="int32", name="i")
    broken, far, j = O.where(x > 0.4, x, O.log(-O.abs(y))), x * 40.0, i - 3
    outputs = [O.squareplus(x, b=2), O.glu(x), O.glu(x, axis=1)] + [f(x) for f in (O.tanh_shrink, O.sparse_plus, O.sparse_sigmoid, O.sparsemax, O.cbrt, O.signbit, O.sinc, O.fabs)] + [O.erfc(x * 2), O.log(O.erfc(O.abs(x) * 2)), O.fabs(j), O.sparsemax(x * 3, axis=1), O.signbit(-O.relu(x)), O.sinc(O.relu(x))]
    outputs += [O.heaviside(O.relu(x), y), O.heaviside(broken, y), O.fmax(broken, y), O.fmin(x, broken), O.fmax(i, j), O.logaddexp2(x, far), O.ldexp(x, j), O.ldexp(O.relu(x), j * 60), O.isclose(x, x + 1e-6), O.isclose(broken, broken, equal_nan=True), O.isclose(far, x, rtol=0.5, atol=0.3), O.isclose(i, j + 3),
                O.bitwise_left_shift(j, i), O.bitwise_right_shift(j * 100, i), O.left_shift(i, 2), O.right_shift(j, 1), O.view(x, "int32"), O.view(O.view(x, "int32"), "float32"), O.select([x > 0.5, y > 0], [x, y], 7.0), O.select([x > 0.5, y > 0], [i, y]), O.floor_divide(x, O.relu(y)), O.floor_divide(far, 0.0), O.floor_divide(far, -3.0)]
    outputs += [f(broken, axis=-1) for f in (O.nansum, O.nanprod, O.nanmax, O.nanmin, O.nanmean, O.nanvar, O.nanstd, O.nancumsum, O.nancumprod)] + [O.nanargmax(O.concatenate([broken, x], 2), axis=2), O.nanargmin(O.concatenate([broken, x], 2), axis=-1), O.nanmax(broken, (1, 2), keepdims=True), O.nansum(i, 1), O.nanmean(i, 1)]
    outputs += [O.median(x, axis=1), O.median(x, (1, 2)), O.median(broken, axis=-1, keepdims=True), O.quantile(x, 0.3, axis=(2,)), O.quantile(x, 0.9, axis=(1, 2), keepdims=True), O.quantile(i, 0.25, axis=(1,)), *[O.percentile(x, 37.0, axis=(2,), method=m) for m in ("linear", "lower", "higher", "nearest", "midpoint")], O.percentile(x, 50.0, axis=(2,), method="nearest")]
    outputs += [O.digitize(x, np.array([-1.0, 0.0, 0.7])), O.digitize(broken, np.array([2.0, 0.5, -0.5])), O.digitize(i, np.array([1, 3])), O.searchsorted(np.array([-1.0, 0.0, 0.7], "float32"), x), O.searchsorted(np.array([1, 3, 3, 4], "int32"), i, side="right"), O.trapezoid(x, dx=0.5, axis=1), O.cdist(x, y[:, :3]), O.isin(i, np.array([1, 4])), O.isin(i, np.array([2, 3]), invert=True), O.extract_sequences(x, 3, 2)]
    return keras.Model([x, y, i], outputs)


@group
def pieces():
    """Functions of `keras.ops` that cut tensors and images into pieces, and those that compute what layers do."""
    rng = np.random.default_rng(2)
    def some(*shape):
        return rng.normal(size=shape).astype("float32")
    x, v, i, b = keras.Input((4, 6), name="x"), keras.Input((5, 3), name="v"), keras.Input((4, 6), dtype="int32", name="i"), keras.Input((6,), dtype="bool", name="b")
    image, line, cube, heads = keras.Input((6, 8, 4), name="image"), keras.Input((9, 4), name="line"), keras.Input((4, 4, 4, 2), name="cube"), keras.Input((5, 4, 3), name="heads")
    first = dict(data_format="channels_first")
    outputs = [O.diff(x), O.diff(x, n=2, axis=1), O.diff(b), O.fliplr(x), *[O.rot90(image, k=k, axes=(1, 2)) for k in range(4)], O.rot90(image, axes=(3, 1)), O.diagonal(x, axis1=1, axis2=2), O.diagonal(image, offset=-2, axis1=2, axis2=1), O.trace(x, offset=1, axis1=1, axis2=2), O.trace(i, axis1=1, axis2=2), O.cross(v, O.flip(v, 1)), O.cross(O.transpose(v, (0, 2, 1)), O.flip(v, 1), axisa=1, axisc=1),
               O.cross(v, v[:, :1] + 1.0), O.slice(x, (0, 1, 2), (-1, 2, 3)), O.slice(x, (0, 3, 5), (-1, 2, -1)), O.slice(x, (0, -3, 2), (-1, 2, 3)), O.dstack([x[:, :, None], O.cast(i, "float32")[:, :, None]]), *O.array_split(x, 4, axis=2), *O.hsplit(x, 2), *O.dsplit(image, [3]), O.multi_hot(i, 6), O.multi_hot(i[:, :, 0], 5), O.matmul(x, some(6, 200))]
    outputs += [O.space_to_depth(image, 2), O.depth_to_space(image, 2), O.space_to_depth(image, 2, **first), O.depth_to_space(O.transpose(image, (0, 3, 1, 2)), 2, **first), O.nn.unfold(image, (2, 3), stride=2, padding=1), O.nn.unfold(image, 2, dilation=2), O.image.extract_patches(image, (3, 2)), O.image.extract_patches(image, 3, strides=2, padding="same"), O.image.extract_patches(image, 2, strides=1, dilation_rate=2), O.image.extract_patches(cube, (2, 2, 2)),
                O.image.pad_images(image, 1, 2, 0, 3), O.image.pad_images(image, top_padding=2, left_padding=1, target_height=9, target_width=12), O.image.crop_images(image, 1, 2, 0, 3), O.image.crop_images(image, bottom_cropping=2, right_cropping=1, target_height=3, target_width=4), O.image.resize(image, (4, 5)), O.image.resize(image, (9, 9), interpolation="nearest"), O.image.resize(image, (5, 5), crop_to_aspect_ratio=True)]
    colour = O.abs(image[..., :3])
    outputs += [O.image.rgb_to_grayscale(image[..., :3]), O.image.rgb_to_hsv(colour), O.image.rgb_to_hsv(O.relu(image[..., :3])), O.image.hsv_to_rgb(image[..., :3]), L.AutoContrast(value_range=(0, 1))(colour), L.AutoContrast()(O.relu(image)), L.AutoContrast()(O.where(image > -2.0, image, O.log(image)))]
    outputs += [O.conv(image, some(3, 2, 4, 5), strides=2, padding="same"), O.conv(line, some(3, 4, 6), dilation_rate=2), O.conv(cube, some(2, 2, 2, 2, 3)), O.depthwise_conv(image, some(3, 3, 4, 2)), O.separable_conv(image, some(2, 2, 4, 3), some(1, 1, 12, 5), strides=2, padding="same"),
                O.batch_normalization(x, some(6), O.abs(some(6)) + 1.0, -1, some(6), some(6)), O.layer_normalization(x, some(6), some(6), epsilon=1e-3), O.layer_normalization(image, some(8, 4), axis=(2, 3)), O.rms_normalization(x, some(6)), O.rms_normalization(x, axis=1, epsilon=0.1), O.adaptive_average_pool(image, (3, 4)), O.adaptive_max_pool(image, (2, 3)),
                O.dot_product_attention(heads, heads[:, 1:], heads[:, :4]), O.dot_product_attention(heads, heads[:, :, :2], heads[:, :, 1:3], is_causal=True, scale=0.3), O.dot_product_attention(heads, heads, heads, bias=some(1, 4, 5, 5), mask=rng.normal(size=(1, 1, 5, 5)) > 0)]
    outputs += each(image, [L.MixUp(), L.CutMix(), L.RandAugment(), L.AugMix(), L.RandomElasticTransform(), L.Solarization(0.5), L.MaxNumBoundingBoxes(4), L.Pipeline([L.Rescaling(2.0), L.Pipeline([L.Resizing(3, 3), L.RandomFlip()])])]) + [L.RandomColorDegeneration(0.5)(colour)]
    photo = keras.Input((5, 4, 3), dtype="uint8", name="photo")
    byte = dict(value_range=(0, 255))
    outputs += [3 * y for y in each(photo, [L.RandomFlip(), L.RandomRotation(0.1), L.RandomSharpness(0.5, **byte), L.RandomErasing(), L.RandomGaussianBlur(), L.RandomElasticTransform(), L.RandomContrast(0.1), L.RandomInvert(**byte), L.RandomGrayscale(), L.MixUp(), L.CutMix()])]
    # Images of integers have their own type in what Keras computes on JAX, whatever its graph names.
    # The sizes are such that no number lies in the middle of two integers.
    odd = photo[:, :, :3]
    outputs += [O.cast(y, "float32") for y in each(odd, [L.Resizing(3, 9), L.Resizing(9, 2, interpolation="nearest"), L.Resizing(9, 9, crop_to_aspect_ratio=True), L.Resizing(3, 3, pad_to_aspect_ratio=True, fill_value=3.0)])] + [O.image.resize(odd, (15, 9)), O.image.resize(O.cast(odd, "int32") * 900 - 2000, (3, 9), interpolation="bicubic")]
    words = L.ReversibleEmbedding(6, 3, mask_zero=True, logit_soft_cap=2.0)
    apart = L.ReversibleEmbedding(6, 3, tie_weights=False)
    return keras.Model([x, v, i, b, image, line, cube, heads, photo], [*outputs, words(v, reverse=True), L.LSTM(2)(words(i[:, 0])), apart(apart(i), reverse=True)])


@group
def signals():
    """Fourier transforms and spectrograms."""
    x, stereo, grid = keras.Input((40,), name="x"), keras.Input((33, 2), name="stereo"), keras.Input((6, 5), name="grid")
    real, imaginary = O.rfft(x)
    outputs = [real, imaginary, *O.rfft(x, fft_length=16), *O.rfft(x, fft_length=51), *O.fft((x, O.sin(x))), *O.fft2((grid, grid * 2 - 1)), *O.ifft2((grid, O.cos(grid))), O.irfft((real, imaginary)), O.irfft((real, imaginary), fft_length=21), O.irfft((real, imaginary), fft_length=60)]
    outputs += [*O.stft(x, 12, 5, 16), *O.stft(x, 7, 3, 8, window="hamming", center=False), *O.stft(O.transpose(stereo, (0, 2, 1)), 8, 4, 8, window=None)]
    outputs += each(stereo, [L.STFTSpectrogram(mode=mode, frame_length=6, frame_step=2, padding=padding) for mode in ("log", "magnitude", "psd", "real", "imag", "angle", "stft") for padding in ("valid", "same")])
    outputs += each(stereo, [L.STFTSpectrogram(frame_length=8, fft_length=16, scaling=None, expand_dims=True), L.STFTSpectrogram(mode="psd", frame_length=5, frame_step=3, fft_length=9, window="hamming", periodic=True, expand_dims=True)])
    first = O.transpose(stereo, (0, 2, 1))
    outputs += each(first, [L.STFTSpectrogram(frame_length=6, data_format="channels_first"), L.STFTSpectrogram(mode="stft", frame_length=6, data_format="channels_first", expand_dims=True)])
    mel = dict(fft_length=16, sampling_rate=1000, power_to_db=False)
    outputs += each(x, [L.MelSpectrogram(sequence_stride=4, num_mel_bins=5, **mel), L.MelSpectrogram(sequence_length=10, sequence_stride=7, num_mel_bins=3, min_freq=50.0, max_freq=300.0, mag_exp=1.0, window="hamming", **mel)])
    return keras.Model([x, stereo, grid], [*outputs, L.MelSpectrogram(sequence_stride=4, num_mel_bins=5, **mel)(first)])


@group
def loudness():
    """Spectrograms in decibels, of which the largest number is that of all rows."""
    x = keras.Input((40,), name="x")
    mel = dict(sequence_stride=4, sampling_rate=1000)
    model = keras.Model(x, each(x, [L.MelSpectrogram(fft_length=16, num_mel_bins=5, **mel), L.MelSpectrogram(fft_length=8, num_mel_bins=2, top_db=3.0, ref_power=2.0, **mel)]))
    model.options = ["--repair", "comm"]
    return model


@group
def rearranging():
    """Functions of `keras.ops` that arrange and contract axes, filter images, and leave NaN out of quantiles."""
    x, y, i, image = keras.Input((4, 6), name="x"), keras.Input((4, 6), name="y"), keras.Input((5,), dtype="int32", name="i"), keras.Input((6, 8, 3), name="image")
    rng = np.random.default_rng(4)
    def some(*shape):
        return rng.normal(size=shape).astype("float32")
    broken = O.where(x > 0.4, x, O.log(-O.abs(y)))
    # Keras builds no model of it with an open batch.
    fixed = keras.Input(batch_shape=(7, 6, 8, 3), name="fixed")
    outputs = [O.rearrange(fixed, "b h w c -> b c h w"), O.rearrange(fixed, "b (h p) (w q) c -> b (h w) (p q c)", p=2, q=4), O.rearrange(fixed, "b h w c -> b (w h) c"), O.rearrange(fixed, "b (x h) w c -> b w (c h) x", h=3)]
    outputs += [O.append(x, y, axis=1), O.append(x, O.cast(i[:, :4, None], "int32"), axis=-1), O.tensordot(x, some(6, 3), axes=1), O.tensordot(image, some(8, 2, 6), axes=[[2, 1], [0, 2]]), O.tensordot(x, some(4, 6)), O.tensordot(x, some(2), axes=0), O.tensordot(image, some(3, 2), axes=[[-1], [0]])]
    outputs += [O.slice_update(x, (0, 1, 2), y[:, :2, :3]), O.slice_update(x, (0, 3, -2), y[:, :2, :4]), O.slice_update(image, [0, 0, 4, 1], image[:, :, :4, :1] * 2)]
    outputs += [O.argpartition(x, 2), O.argpartition(x, -3, axis=1), O.argpartition(i, 4), O.argpartition(O.cast(x * 2, "int32"), 3), O.in_top_k(i[:, 0], x[:, 0], 2), O.in_top_k(O.minimum(i[:, 1], 3), O.round(y[:, :, 0]), 1), O.saturate_cast(image * 200, "uint8"), O.saturate_cast(i * 100, "int8"), O.saturate_cast(i, "int32"), O.saturate_cast(x > 0, "uint8")]
    outputs += [O.image.gaussian_blur(image), O.image.gaussian_blur(image, (5, 3), (2.0, 0.5)), O.image.gaussian_blur(image, (4, 2), (1.0, 3.0), data_format="channels_first"), O.image.sobel_edges(image), O.image.sobel_edges(image, data_format="channels_first")]
    columns = O.reshape(image, (-1, 12, 12))
    outputs += [O.nn.fold(columns, (4, 5), 2), O.nn.fold(columns[:, :, :6], (3, 4), 2), O.nn.fold(columns[:, :, :9], 4, 2, padding=1, stride=2), O.nn.fold(columns[:, :, :4], 4, 2, dilation=2)]
    outputs += [O.nanmedian(broken, axis=1), O.nanmedian(broken, (1, 2), keepdims=True), O.nanmedian(x, axis=2), O.nanquantile(broken, 0.3, axis=(2,)), O.nanquantile(i, 0.6, axis=(1,), keepdims=True), *[O.nanpercentile(broken, 37.0, axis=(2,), method=m) for m in ("linear", "lower", "higher", "nearest", "midpoint")]]
    outputs += [O.take(some(6, 2, 3), i, axis=0), O.take(some(6), i), O.take(some(2, 7), i[:, :2] - 2, axis=1)]
    outputs += [O.erfinv(O.clip(x, -1.0, 1.0)), O.erfinv(O.clip(x * 0.2, -1.0, 1.0)), O.erfinv(O.clip(O.exp(-O.abs(x) * 9) - 1.0, -1.0, 1.0))]
    return keras.Model([x, y, i, image, fixed], outputs)
