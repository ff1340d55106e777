/*
async_cnn.c: a small convolutional network, trained with SGD and momentum on pictures that a formula draws, by replicas
that use each other's work at once or late. dev/experiments/async_cnn.py runs it for many settings.

    async_cnn [OPTIONS]     trains once and prints one line of JSON; --help lists the options
    --dump FILE             also writes pictures, order and weights of every step for dev/test/system/check_async_cnn.py

Replicas take turns in one process. The rules of an update are the trainer's own kernels, in the order of its steps.

Theory: 16x16x1 -3x3-> 8x8x16 -3x3-> 4x4x32 -3x3-> 2x2x64 -2x2-> 16 classes: four convolutions of stride 2 with biases
and ReLU between them, 27,408 parameters, without normalisation, so that a gradient does not depend on the rest of its
batch. Each is a matrix product: patches (places, kernel kernel in) times weights (kernel kernel in, out).

    sync        w -= update(mean gradient of all replicas)
    delayed     the same with the gradient of `delay` steps before, compensated by lambda. With a delay of M - 1 it is
                the update of a server to which M workers send in turn (DC-ASGD, Zheng et al. 2017, arXiv 1609.08326)
    dc-s3gd     every replica with its own update from the common weights, see methods/async_dp.h (Rigazzi 2019)
*/
#include "../../kernels/async_dp.h"
#include "../../kernels/global_norm.h"
#include "../../kernels/adamw.h"
#include "../../methods/async_schedule.h"
#include "../../trainer/settings.h"
#include "../../util/options.h"

enum { SIDE = 16, PIXELS = SIDE * SIDE, CLASSES = 16, LAYERS = 4, TENSORS = 2 * LAYERS };
enum { MICRO = 32, TEST = 4096, LANES = 16, ROWS = 8 }; // MICRO: pictures computed at a time

// A convolution of stride 2: (side, side, in) to (side / 2, side / 2, out).
typedef struct {
    int side, kernel, in, out;
} Layer;
static const Layer layers[LAYERS] = {{SIDE, 3, 1, 16}, {8, 3, 16, 32}, {4, 3, 32, 64}, {2, 2, 64, CLASSES}};
static int layer_places(const Layer* layer) { return layer->side * layer->side / 4; }
static int layer_inputs(const Layer* layer) { return layer->kernel * layer->kernel * layer->in; }

enum { CNN_SYNC, CNN_DELAYED, CNN_DC_S3GD };

typedef struct {
    int mode;
    int64_t replicas, batch, delay, epochs, samples, seed;
    double lambda0, lambda, momentum, lr;
    const char* dump;
} CnnSettings;

// Values of MICRO pictures in a forward and backward pass; the second layer has the most.
typedef struct {
    float patches[LAYERS][MICRO * 16 * 144], out[LAYERS][MICRO * 64 * 16]; // (n places, inputs), (n places, out)
    float d_patches[MICRO * 16 * 144], d_out[MICRO * 64 * 16], transposed[288 * 64];
} Activations;

typedef struct {
    CnnSettings settings;
    int64_t sites, delay;
    TensorRange range[TENSORS]; // weights and biases of every layer
    int64_t parameters, steps;
    Activations acts;
    float *train, *test;                   // pictures (samples, PIXELS), (TEST, PIXELS)
    int32_t* order;                        // (samples): of this epoch
    float *weights, *velocity;             // (parameters): the common ones
    float *sum, *scratch;                  // (parameters): dc-s3gd's changes in flight; what is evaluated
    float *local_weights, *local_velocity; // (replicas, parameters): dc-s3gd
    float *grads, *late_weights;           // (delay + 1, parameters): gradients in flight, and where they belong
} Trainer;

static float* new_floats(int64_t n) { return (float*)checked_calloc((size_t)n, sizeof(float), "the network"); }
static void copy(float* to, const float* from, int64_t n) { memcpy(to, from, (size_t)n * sizeof(float)); }

// ---- the pictures
// Less than 1 inside a shape, proportional to the distance from its centre.
static float shape_radius(int shape, float u, float v) {
    const float r = hypotf(u, v), a = fabsf(u), b = fabsf(v), angle = atan2f(v, u);
    switch (shape) {
    case 0: return r;
    case 1: return 1.2f * fmaxf(a, b);
    case 2: return hypotf(0.75f * u, 1.6f * v);
    case 3: return 1.6f * fmaxf(-v, fmaxf(0.866f * u + 0.5f * v, -0.866f * u + 0.5f * v)); // a triangle
    case 4: return r * (1.1f - 0.4f * cosf(5 * angle));                                    // a star
    case 5: return fminf(fmaxf(a, 3 * b), fmaxf(3 * a, b));                                // a cross
    case 6: return fmaxf(r, -4 * u);                                                       // half a disc
    default: return fmaxf(0.9f * a, 2.2f * b);                                             // a bar
    }
}

// n pictures from number `first` on, whose class is its number mod CLASSES: 8 shapes, full and as outlines, of any
// place, size, angle and contrast, light or dark, with noise.
static float* draw_pictures(int64_t first, int64_t n) {
    enum { PLACES, NOISE, KEY = 2019 };
    float* pixel = new_floats(n * PIXELS);
    random_normals(pixel, n * PIXELS, KEY, NOISE, (uint64_t)(first * PIXELS));
    for (int64_t i = first; i < first + n; i++) {
        float random[6];
        for (int k = 0; k < 6; k++) random[k] = random_uniform(KEY, PLACES, (uint64_t)(i * 8 + k));
        const int shape = (int)(i % CLASSES) / 2;
        const float angle = 6.2831853f * random[0], cosine = cosf(angle), sine = sinf(angle);
        const float size = 4.2f + 2.2f * random[1], x0 = 6 + 3 * random[2], y0 = 6 + 3 * random[3];
        const float contrast = (random[4] < 0.5f ? -1 : 1) * (0.8f + 0.6f * random[5]);
        for (int p = 0; p < PIXELS; p++, pixel++) {
            const float x = ((float)(p % SIDE) - x0) / size, y = ((float)(p / SIDE) - y0) / size;
            const float r = shape_radius(shape, cosine * x + sine * y, cosine * y - sine * x);
            float light = fminf(1, fmaxf(0, 4 * (1.1f - r)));
            if (i % 2) light -= fminf(1, fmaxf(0, 4 * (0.7f - r)));
            *pixel = contrast * light + 0.35f * *pixel;
        }
    }
    return pixel - n * PIXELS;
}

// A random order of the training pictures, another one in every epoch (Fisher and Yates).
static void shuffle(int32_t* order, int64_t n, int64_t seed, int64_t epoch) {
    for (int64_t i = 0; i < n; i++) order[i] = (int32_t)i;
    for (int64_t i = n - 1; i > 0; i--) {
        const int64_t j = philox((uint64_t)seed, (uint64_t)(1000 + epoch), (uint64_t)i).word[0] % (i + 1);
        const int32_t kept = order[i];
        order[i] = order[j];
        order[j] = kept;
    }
}

// ---- the network
typedef float Lanes __attribute__((vector_size(LANES * sizeof(float)), aligned(sizeof(float)), may_alias));

// `rows` rows and LANES columns of multiply(), in registers.
__attribute__((always_inline)) static inline void multiply_block(float* out, const float* a, int row, int step,
                                                                 const float* b, int K, int N, int rows) {
    Lanes sum[ROWS];
    for (int i = 0; i < rows; i++) sum[i] = *(const Lanes*)(out + i * N);
    for (int k = 0; k < K; k++) {
        for (int i = 0; i < rows; i++) sum[i] += a[i * row + k * step] * *(const Lanes*)(b + k * N);
    }
    for (int i = 0; i < rows; i++) *(Lanes*)(out + i * N) = sum[i];
}

// out (M, N) += A (M, K) times b (K, N). Element (i, k) of A is at a[i row + k step]; N is a multiple of LANES.
static void multiply(float* out, const float* a, int row, int step, const float* b, int M, int K, int N) {
    for (int j = 0; j < N; j += LANES) {
        int i = 0;
        for (; i + ROWS <= M; i += ROWS) multiply_block(out + i * N + j, a + i * row, row, step, b + j, K, N, ROWS);
        for (; i < M; i++) multiply_block(out + i * N + j, a + i * row, row, step, b + j, K, N, 1);
    }
}

// Copies between n pictures `in` (n, side, side, in) and their patches (n places, inputs), which stay 0 outside of
// the picture; back: adds the patches to the pictures.
static void move_patches(float* patches, float* in, const Layer* layer, int n, bool back) {
    const int side = layer->side, kernel = layer->kernel, channels = layer->in, pad = (kernel - 1) / 2;
    for (int place = 0; place < n * layer_places(layer); place++) {
        const int y0 = place / (side / 2) % (side / 2) * 2 - pad, x0 = place % (side / 2) * 2 - pad;
        float* picture = in + place / layer_places(layer) * side * side * channels;
        for (int k = 0; k < kernel * kernel; k++, patches += channels) {
            const int y = y0 + k / kernel, x = x0 + k % kernel;
            float* pixel = picture + (y * side + x) * channels;
            if (y < 0 || x < 0 || y >= side || x >= side) continue;
            if (!back) copy(patches, pixel, channels);
            for (int c = 0; c < (back ? channels : 0); c++) pixel[c] += patches[c];
        }
    }
}

// The classes' logits are a->out[LAYERS - 1] (n, CLASSES).
static void forward(Activations* a, const Trainer* t, const float* weights, float* pixels, int n) {
    for (int l = 0; l < LAYERS; l++) {
        const Layer* layer = &layers[l];
        const int rows = n * layer_places(layer), inputs = layer_inputs(layer);
        float* out = a->out[l];
        move_patches(a->patches[l], l ? a->out[l - 1] : pixels, layer, n, false);
        for (int i = 0; i < rows; i++) copy(out + i * layer->out, weights + t->range[2 * l + 1].from, layer->out);
        multiply(out, a->patches[l], inputs, 1, weights + t->range[2 * l].from, rows, inputs, layer->out);
        if (l == LAYERS - 1) break;
        for (int i = 0; i < rows * layer->out; i++) out[i] = out[i] > 0 ? out[i] : 0;
    }
}

// Cross-entropy of n pictures, summed; *wrong += those whose label does not have the largest logit. The logits become
// their gradient times scale.
static double loss_of(float* logits, const int32_t* label, int n, float scale, int64_t* wrong) {
    double loss = 0;
    for (int i = 0; i < n; i++, logits += CLASSES) {
        float sum = 0;
        int best = 0;
        for (int c = 1; c < CLASSES; c++) best = logits[c] > logits[best] ? c : best;
        const float largest = logits[best];
        if (wrong) *wrong += best != label[i];
        for (int c = 0; c < CLASSES; c++) sum += expf(logits[c] - largest);
        loss += log(sum) + largest - logits[label[i]];
        for (int c = 0; c < CLASSES; c++)
            logits[c] = scale * (expf(logits[c] - largest) / sum - (float)(c == label[i]));
    }
    return loss;
}

// grads += the gradients of n pictures, from that of the logits in a->out[LAYERS - 1].
static void backward(Activations* a, const Trainer* t, float* grads, const float* weights, int n) {
    float* d = a->out[LAYERS - 1];
    for (int l = LAYERS - 1; l >= 0; l--) {
        const Layer* layer = &layers[l];
        const int rows = n * layer_places(layer), inputs = layer_inputs(layer), out = layer->out;
        float* d_bias = grads + t->range[2 * l + 1].from;
        multiply(grads + t->range[2 * l].from, a->patches[l], 1, inputs, d, inputs, rows, out);
        for (int i = 0; i < rows; i++) {
            for (int o = 0; o < out; o++) d_bias[o] += d[i * out + o];
        }
        if (l == 0) break;
        for (int o = 0; o < out; o++) {
            for (int i = 0; i < inputs; i++)
                a->transposed[o * inputs + i] = weights[t->range[2 * l].from + i * out + o];
        }
        memset(a->d_patches, 0, (size_t)(rows * inputs) * sizeof(float));
        multiply(a->d_patches, d, out, 1, a->transposed, rows, out, inputs);
        const int below = n * layer->side * layer->side * layer->in;
        memset(a->d_out, 0, (size_t)below * sizeof(float));
        move_patches(a->d_patches, a->d_out, layer, n, true);
        d = a->d_out;
        for (int i = 0; i < below; i++) d[i] = a->out[l - 1][i] > 0 ? d[i] : 0;
    }
}

// The summed loss of n pictures divided by `whole`. order: their numbers; NULL: the first n. grads, unless NULL, += the
// gradients of that loss; *wrong, unless NULL, += those not recognised.
static double run(Trainer* t, float* grads, const float* weights, const float* pictures, const int32_t* order,
                  int64_t n, int64_t whole, int64_t* wrong) {
    float pixels[MICRO * PIXELS];
    int32_t label[MICRO];
    double loss = 0;
    for (int64_t begin = 0; begin < n; begin += MICRO) {
        const int part = (int)min_i64(MICRO, n - begin);
        for (int i = 0; i < part; i++) {
            const int64_t number = order ? order[begin + i] : begin + i;
            copy(pixels + i * PIXELS, pictures + number * PIXELS, PIXELS);
            label[i] = (int32_t)(number % CLASSES);
        }
        forward(&t->acts, t, weights, pixels, part);
        loss += loss_of(t->acts.out[LAYERS - 1], label, part, 1 / (float)whole, wrong);
        if (grads) backward(&t->acts, t, grads, weights, part);
    }
    return loss / (double)whole;
}

// ---- a step of every mode; steps are counted from 1
// g += lambda g g (to - from), tensor by tensor.
static void compensate(const Trainer* t, float* g, const float* to, const float* from) {
    if (t->settings.lambda0 + t->settings.lambda == 0) return;
    for (int i = 0; i < TENSORS; i++) {
        const int64_t at = t->range[i].from, n = t->range[i].n;
        double corrections = 0;
        delay_squares(&corrections, g + at, to + at, from + at, n);
        float lambda = compensation_lambda(t->settings.lambda0, sum_of_squares_range(g + at, n), corrections);
        if (t->settings.lambda > 0) lambda = (float)t->settings.lambda;
        if (lambda > 0) delay_compensate(g + at, to + at, from + at, lambda, n);
    }
}

static void update(const Trainer* t, float* weights, float* velocity, const float* grads, int64_t number) {
    const int64_t updates = t->steps - t->delay * (t->settings.mode == CNN_DELAYED);
    const double lr = lr_at(&lr_curves[0], t->settings.lr, 0, max_i64(1, updates / 10), updates, number - 1);
    const OptimizerStep step = {(float)lr, (float)t->settings.momentum, 0, 0, 5e-4f, number, 1};
    sgd_update(weights, NULL, grads, velocity, NULL, t->range, TENSORS, &step);
}

// The weights when all that is in flight has arrived. One replica alone has no distance to the others, by rounding
// neither, which lambda0 would make as long as any other.
static const float* common_weights(const Trainer* t) {
    const bool local = t->settings.mode == CNN_DC_S3GD;
    copy(t->scratch, local && t->sites == 1 ? t->local_weights : t->weights, t->parameters);
    if (t->sites > 1) add_scaled(t->scratch, t->sum, 1 / (float)t->sites, t->parameters);
    return t->scratch;
}

// sync and delayed. order: the pictures of this step; every replica takes its part of them.
static double step_delayed(Trainer* t, int64_t step, const int32_t* order) {
    const int64_t slots = t->delay + 1, part = t->settings.batch / t->settings.replicas;
    float* grads = t->grads + step % slots * t->parameters;
    double loss = 0;
    memset(grads, 0, (size_t)t->parameters * sizeof(float));
    copy(t->late_weights + step % slots * t->parameters, t->weights, t->parameters);
    for (int64_t r = 0; r < t->settings.replicas; r++)
        loss += run(t, grads, t->weights, t->train, order + r * part, part, t->settings.batch, NULL);
    if (step <= t->delay) return loss;
    const int64_t due = step - t->delay, at = due % slots * t->parameters;
    compensate(t, t->grads + at, t->weights, t->late_weights + at);
    update(t, t->weights, t->velocity, t->grads + at, due);
    return loss;
}

static double step_dc_s3gd(Trainer* t, int64_t step, const int32_t* order) {
    const int64_t n = t->parameters, part = t->settings.batch / t->settings.replicas;
    double loss = 0;
    copy(t->weights, common_weights(t), n); // nothing is in flight before the first step: the sum is 0
    memset(t->sum, 0, (size_t)n * sizeof(float));
    for (int64_t r = 0; r < t->settings.replicas; r++) {
        float* own = t->local_weights + r * n;
        memset(t->grads, 0, (size_t)n * sizeof(float));
        loss += run(t, t->grads, own, t->train, order + r * part, part, part, NULL);
        compensate(t, t->grads, t->weights, own);
        copy(own, t->weights, n);
        update(t, own, t->local_velocity + r * n, t->grads, step);
        difference(t->scratch, own, t->weights, n);
        add_scaled(t->sum, t->scratch, 1, n);
    }
    return loss / (double)t->settings.replicas;
}

// ---- a run
static void trainer_init(Trainer* t) {
    const CnnSettings* settings = &t->settings;
    const bool local = settings->mode == CNN_DC_S3GD;
    for (int i = 0; i < TENSORS; i++) {
        const int64_t inputs = layer_inputs(&layers[i / 2]), out = layers[i / 2].out;
        t->range[i] = whole_range(i % 2 ? out : inputs * out);
        t->range[i].from = t->range[i].at = t->parameters;
        t->range[i].decays = i % 2 == 0;
        t->parameters += t->range[i].n;
    }
    t->train = draw_pictures(0, settings->samples);
    t->test = draw_pictures(1 << 24, TEST);
    t->order = (int32_t*)checked_calloc((size_t)settings->samples, sizeof(int32_t), "the order");
    t->steps = settings->epochs * (settings->samples / settings->batch);
    t->sites = local ? settings->replicas : 1;
    t->delay = local ? 1 : settings->delay;
    float** vectors[] = {&t->weights, &t->velocity, &t->sum, &t->scratch};
    for (int i = 0; i < 4; i++) *vectors[i] = new_floats(t->parameters);
    t->grads = new_floats((t->delay + 1) * t->parameters);
    t->late_weights = new_floats((t->delay + 1) * t->parameters);
    t->local_weights = new_floats(t->sites * t->parameters);
    t->local_velocity = new_floats(t->sites * t->parameters);
    for (int l = 0; l < LAYERS; l++) { // He et al. 2015
        const TensorRange* range = &t->range[2 * l];
        random_normals(t->weights + range->from, range->n, (uint64_t)settings->seed, (uint64_t)l, 0);
        const float scale = sqrtf(2.0f / (float)layer_inputs(&layers[l]));
        for (int64_t i = 0; i < range->n; i++) t->weights[range->from + i] *= scale;
    }
    for (int64_t r = 0; r < t->sites; r++) copy(t->local_weights + r * t->parameters, t->weights, t->parameters);
}

// Trains to the end, or until the loss is not finite: false.
static bool train(Trainer* t, FILE* dump) {
    const CnnSettings* settings = &t->settings;
    const int64_t in_epoch = settings->samples / settings->batch;
    for (int64_t step = 1; step <= t->steps; step++) {
        const int64_t begin = (step - 1) % in_epoch * settings->batch;
        if (begin == 0) shuffle(t->order, settings->samples, settings->seed, (step - 1) / in_epoch);
        const double loss = settings->mode == CNN_DC_S3GD ? step_dc_s3gd(t, step, t->order + begin)
                                                          : step_delayed(t, step, t->order + begin);
        if (!isfinite(loss)) return false;
        if (!dump) continue;
        fwrite(t->order + begin, sizeof(int32_t), (size_t)settings->batch, dump);
        fwrite(common_weights(t), sizeof(float), (size_t)t->parameters, dump);
    }
    return true;
}

static void parse(CnnSettings* s, int argc, char** argv) {
    bool help = false;
    Error error;
    Option table[] = {
        option_choice("mode", &s->mode, "sync|delayed|dc-s3gd", "how replicas use each other's work [sync]"),
        option_int("replicas", &s->replicas, 1, 1024, "replicas, each with its part of a batch [8]"),
        option_int("batch", &s->batch, 1, 65536, "pictures of a step, of all replicas [256]"),
        option_int("delay", &s->delay, 0, 1024, "delayed: steps from a gradient to its use [1]"),
        option_float("lambda0", &s->lambda0, 0, 1e6, "length of the compensation, in lengths of the gradient [0]"),
        option_float("lambda", &s->lambda, 0, 1e9, "the constant factor of DC-ASGD's compensation, instead [0]"),
        option_float("momentum", &s->momentum, 0, 0.999, "of SGD, whose weight decay is 5e-4 [0.9]"),
        option_float("lr", &s->lr, 0, 1e6, "after a tenth of the updates, then a cosine to 0 [0.02]"),
        option_int("epochs", &s->epochs, 1, 1000000, "[6]"),
        option_int("samples", &s->samples, 1, 1 << 24, "training pictures [8192]"),
        option_int("seed", &s->seed, 0, 1e9, "of initial weights and order; the pictures are always the same [1]"),
        option_string("dump", &s->dump, "FILE", "write every step's weights"),
        option_flag("help", &help, "this text"),
    };
    const int rows = (int)(sizeof table / sizeof table[0]);
    if (!options_parse(table, rows, argc, argv, &error)) die_usage("%s", error.text);
    if (help) {
        options_help(table, rows, stdout);
        exit(0);
    }
    if (s->mode != CNN_DELAYED) s->delay = s->mode == CNN_DC_S3GD;
    if (s->batch % s->replicas || s->batch > s->samples)
        die_usage("--batch has to be a multiple of --replicas, and at most --samples");
    if (s->mode == CNN_SYNC && s->lambda0 + s->lambda > 0) die_usage("nothing is late in --mode sync; drop --lambda");
}

int main(int argc, char** argv) {
    Trainer* t = (Trainer*)checked_calloc(1, sizeof *t, "the trainer");
    const CnnSettings defaults = {CNN_SYNC, 8, 256, 1, 6, 8192, 1, 0, 0, 0.9, 0.02, NULL};
    process.name = "async_cnn";
    t->settings = defaults;
    parse(&t->settings, argc, argv);
    trainer_init(t);
    FILE* dump = t->settings.dump ? fopen(t->settings.dump, "wb") : NULL;
    if (t->settings.dump && !dump) die("--dump %s cannot be written: %s", t->settings.dump, strerror(errno));
    if (dump) fwrite(t->train, sizeof(float), (size_t)(t->settings.samples * PIXELS), dump);
    if (dump) fwrite(t->weights, sizeof(float), (size_t)t->parameters, dump);
    int64_t wrong = 0;
    const bool trained = train(t, dump);
    const double loss = run(t, NULL, common_weights(t), t->test, NULL, TEST, TEST, &wrong);
    if (dump && (ferror(dump) || fclose(dump))) die("--dump %s cannot be written", t->settings.dump);
    const bool finite = trained && isfinite(loss);
    printf("{\"error\": %.6f, \"loss\": %.6f, \"diverged\": %s}\n", (double)wrong / TEST, finite ? loss : 0,
           finite ? "false" : "true");
    return 0;
}
