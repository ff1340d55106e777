/*
test_layout.c: the plans, which are data and can be proved. Parameter counts against published ones and against the
formula of Narayanan et al. 2021; the mesh, the stages, the layout of every rank of many meshes, and what a mesh is
refused for, against their definitions, by brute force; traffic against the papers' formulas; the command line.
*/
#include "../../../util/options.h"
#include "../../../parallel/traffic.h"
#include "test.h"

static void test_presets(void) {
    static const struct {
        const char* name;
        int64_t parameters;
    } published[] = {{"gpt2-124M", 124439808},   {"gpt2-350M", 354823168},   {"gpt2-774M", 774030080},
                     {"gpt2-1558M", 1557611200}, {"llama-1.1B", 1100048384}, {"llama-7B", 6738415616}};
    for (size_t i = 0; i < sizeof published / sizeof published[0]; i++) {
        const int64_t n = model_parameters(model_find_preset(published[i].name));
        check(n == published[i].parameters, "%s has %lld parameters, published %lld", published[i].name, (long long)n,
              (long long)published[i].parameters);
    }
    // Narayanan et al. 2021, Table 1 and equation (2): P = 12 l h^2 (1 + 13 / (12 h) + (V + s) / (12 l h)), in billions
    // to one digit; equation (2) leaves out the final norm's 2 h.
    static const double table1[] = {1.7, 3.6, 7.5, 18.4, 39.1, 76.1, 145.6, 310.1, 529.6, 1008.0};
    for (size_t i = 0; i < 10; i++) {
        char name[32];
        snprintf(name, sizeof name, table1[i] == 1008.0 ? "gpt3-%.0fB" : "gpt3-%.1fB", table1[i]);
        const ModelConfig* m = model_find_preset(name);
        if (!check(m != NULL, "%s is a preset", name)) continue;
        const double l = m->L, h = m->C;
        const double P = 12 * l * h * h * (1 + 13 / (12 * h) + (m->V + m->T) / (12 * l * h)) + 2 * h;
        const double n = (double)model_parameters(m);
        check(fabs(n - P) < 1 && fabs(n / 1e9 - table1[i]) <= 0.05,
              "%s has %.0f parameters, the formula %.0f, the paper %.1f B", name, n, P, table1[i]);
    }
    int count;
    const ModelConfig* presets = model_presets(&count);
    for (int i = 0; i < count; i++) {
        Error error = {""};
        if (!model_check(&presets[i], &error)) check(false, "%s: %s", presets[i].name, error.text);
    }
}

// ----------------------------------------------------------------------------------------------------------------
// The mesh

// Megatron-LM's own example (megatron/core/parallel_state.py, initialize_model_parallel): 16 ranks, t = 2, p = 4,
// d = 2.
static void test_groups(void) {
    static const int tensor[][4] = {{0, 1, -1, -1}, {2, 3, -1, -1}, {14, 15, -1, -1}};
    static const int data[][4] = {{0, 2, -1, -1}, {1, 3, -1, -1}, {4, 6, -1, -1}, {13, 15, -1, -1}};
    static const int pipeline[][4] = {{0, 4, 8, 12}, {1, 5, 9, 13}, {3, 7, 11, 15}};
    const struct {
        const char* name;
        const int (*ranks)[4];
        int groups, size, step[3]; // step: of tensor, pipeline and data from one rank of the group to the next
    } kinds[] = {
        {"tensor", tensor, 3, 2, {1, 0, 0}}, {"data", data, 4, 2, {0, 0, 1}}, {"pipeline", pipeline, 3, 4, {0, 1, 0}}};
    for (int k = 0; k < 3; k++) {
        bool ok = true;
        for (int g = 0; g < kinds[k].groups; g++) {
            const Mesh first = mesh_of_rank(kinds[k].ranks[g][0], 2, 4, 2);
            for (int i = 0; i < kinds[k].size; i++) {
                const Mesh mesh = mesh_of_rank(kinds[k].ranks[g][i], 2, 4, 2);
                ok = ok && mesh.tensor == first.tensor + i * kinds[k].step[0];
                ok = ok && mesh.pipeline == first.pipeline + i * kinds[k].step[1];
                ok = ok && mesh.data == first.data + i * kinds[k].step[2];
            }
        }
        check(ok, "the %s groups of t=2 p=4 d=2 are Megatron-LM's", kinds[k].name);
    }
    bool ok = true;
    int meshes = 0;
    for (int t = 1; t <= 16; t++) {
        for (int p = 1; t * p <= 16; p++) {
            for (int d = 1; t * p * d <= 16; d++, meshes++) {
                for (int rank = 0; rank < t * p * d; rank++) {
                    const Mesh m = mesh_of_rank(rank, t, p, d);
                    ok = ok && mesh_size(&m) == t * p * d && mesh_rank(&m) == rank;
                    ok = ok && m.t == t && m.p == p && m.d == d;
                    ok = ok && m.tensor >= 0 && m.tensor < t && m.pipeline >= 0 && m.pipeline < p;
                    ok = ok && m.data >= 0 && m.data < d;
                }
            }
        }
    }
    check(ok, "rank to coordinates and back, %d meshes of up to 16 ranks", meshes);
}

// The mesh of a rank that has all but its place in common with `like`.
static Mesh mesh_like(const Mesh* like, int rank) {
    const Mesh at = mesh_of_rank(rank, like->t, like->p, like->d);
    Mesh mesh = *like;
    mesh.tensor = at.tensor, mesh.pipeline = at.pipeline, mesh.data = at.data;
    return mesh;
}

// Makes it one of a CAAT-Net with N states.
static Mesh with_states(Mesh mesh, int N, double share) {
    mesh.sync.ranks = N, mesh.sync.share = share;
    return mesh;
}

// Blocks of each stage by dealing: the first and the last get their wish, the others one block each in turn, from the
// earliest, until there are none left. Returns false if a stage gets none or a block is left over.
static bool deal_layers(int* layers, int L, int p, int first, int last) {
    int left = L;
    for (int i = 0; i < p; i++) layers[i] = 0;
    if (p == 1 && (first || last)) return false;
    if (first) layers[0] = first, left -= first;
    if (last) layers[p - 1] = last, left -= last;
    for (bool dealt = true; dealt && left > 0;) {
        dealt = false;
        for (int i = 0; i < p && left > 0; i++) {
            const bool wish = (i == 0 && first) || (i == p - 1 && last);
            if (!wish) layers[i]++, left--, dealt = true;
        }
    }
    for (int i = 0; i < p; i++) {
        if (layers[i] <= 0) return false;
    }
    return left == 0;
}

static void test_stages(void) {
    int accepted = 0, refused = 0, named = 0;
    bool same = true, right = true;
    ModelConfig m = model_of(ARCH_GPT2, 0, 4, 1, 1, 4, 8, 8);
    for (m.L = 1; m.L <= 13; m.L++) {
        for (int stages = 1; stages <= 9; stages++) {
            for (int wish = 0; wish < 15 * 15; wish++) {
                const int v = stages % 3 == 0 && wish % 2 ? 3 : stages % 2 == 0 && wish % 4 > 1 ? 2 : 1, p = stages / v;
                if (v > 1 && p == 1) continue;
                Mesh mesh = mesh_of_rank(0, 1, p, 1);
                mesh.v = v;
                mesh.first_layers = wish / 15, mesh.last_layers = wish % 15;
                int layers[9], first = 0;
                Error error = {""};
                const bool fits = deal_layers(layers, m.L, stages, mesh.first_layers, mesh.last_layers);
                const bool accepts = mesh_check(&mesh, &m, 8, &error);
                same = same && fits == accepts;
                if (!fits || !accepts) {
                    refused++, named += strstr(error.text, wish ? p > 1 ? "--pp " : "--first-stage-layers" : "--pp ") != NULL;
                    continue;
                }
                accepted++;
                for (int i = 0; i <= stages; i++) {
                    right = right && stage_first_layer(&mesh, m.L, i) == first;
                    if (i < stages) first += layers[i];
                }
            }
        }
    }
    check(same && named == refused, "stages: %d accepted, %d refused, %d by name, as by dealing out the blocks",
          accepted, refused, named);
    check(right, "each begins where the dealing puts it");
}

// ----------------------------------------------------------------------------------------------------------------
// The layout of every rank

static bool is_one_of(TensorKind kind, const TensorKind* kinds, int n) {
    for (int i = 0; i < n; i++) {
        if (kinds[i] == kind) return true;
    }
    return false;
}

// Tensor ranks that hold the same elements of a tensor, by its kind.
static int expected_copies(const Tensor* tensor, const ModelConfig* m, int t) {
    static const TensorKind cut[] = {WTE, QKV_W, QKV_B, ATTN_PROJ_W, FC_W, UP_W, FC_B, MLP_PROJ_W, HEAD_W};
    if (tensor->kind == K_W || tensor->kind == V_W) return t > m->NKV ? t / m->NKV : 1;
    return is_one_of(tensor->kind, cut, 9) ? 1 : t;
}

// Slices follow each other; buckets cover them and the whole buffer, each padded by less than its multiple; a block is
// one bucket, and so are all states' rows of the vocabulary; shares of data ranks cover the buckets.
static bool buckets_are_right(const Layout* layout, const ModelConfig* m, int d) {
    int64_t end = 0, shares = 0;
    int n = 0;
    bool ok = true;
    for (int b = 0; b < layout->buckets; b++) {
        const Bucket* bucket = &layout->bucket[b];
        int64_t at = bucket->offset, padding;
        ok = ok && bucket->offset == end && bucket->first == n && bucket->slices > 0;
        for (int i = 0; i < bucket->slices && ok; i++, n++) {
            const Slice *s = &layout->slices[n], *first = &layout->slices[bucket->first];
            const bool block = s->tensor.layer >= 0 && s->tensor.layer < m->L;
            ok = s->offset == at && s->bucket == b && s->tensor.layer == first->tensor.layer &&
                 (block || s->tensor.kind == first->tensor.kind || s->tensor.kind == FINAL_NORM_B);
            at += s->rows * s->cols;
        }
        end += bucket->elements, padding = end - at;
        ok = ok && bucket->elements % (16 * d) == 0 && padding >= 0 && padding < 16 * d;
        ok = ok && bucket_shard_size(layout, b) * d == bucket->elements && bucket_shard_offset(layout, b) == shares;
        shares += bucket_shard_size(layout, b);
    }
    const int outside = (layout->first_stage ? m->arch == ARCH_GPT2 ? 2 : 1 : 0) + (layout->last_stage ? 1 : 0) +
                        (layout->last_stage && (!m->tied || !layout->first_stage) ? 1 : 0);
    return ok && n == layout->n && end == layout->elements && shares * d == end &&
           layout->buckets == layout->layers + outside;
}

// The block of the model that is this rank's block number `local`, and the chunk that it is in, counted out: chunk after
// chunk, each of which is part c p + r of the model, or, on the way back in a V, c p + p - 1 - r.
static int count_out(const Layout* layout, const ModelConfig* m, int local, int* chunk) {
    const Mesh* mesh = &layout->mesh;
    for (*chunk = 0; *chunk < mesh->v; (*chunk)++) {
        const bool back = mesh->folded && *chunk == 1;
        const int part = *chunk * mesh->p + (back ? mesh->p - 1 - mesh->pipeline : mesh->pipeline);
        const int first = stage_first_layer(mesh, m->L, part), layers = stage_first_layer(mesh, m->L, part + 1) - first;
        if (local < layers) return first + local;
        local -= layers;
    }
    return -1;
}

// Every bucket is of the chunk that its gradients come from: a block's, the first one with the embedding, the last one
// with the head; an embedding that is the head too, of the one that ends later, the first, or of none where two ranks have
// one use of it each.
static bool chunks_are_right(const Layout* layout, const ModelConfig* m) {
    bool ok = true;
    for (int local = 0; local < layout->layers; local++) {
        int chunk;
        const int layer = count_out(layout, m, local, &chunk);
        const Slice* s = layout_slice(layout, local, NORM1_W);
        ok = ok && s && s->tensor.layer == layer && layout->bucket[s->bucket].chunk == chunk;
    }
    const Slice *wte = layout_slice(layout, -1, WTE), *head = layout_slice(layout, -1, HEAD_W);
    const Slice* norm = layout_slice(layout, -1, FINAL_NORM_W);
    const int last = layout->mesh.v - 1;
    const bool apart =
        m->tied && layout->first_stage != layout->last_stage; // the other half of its gradient is elsewhere
    if (wte) ok = ok && layout->bucket[wte->bucket].chunk == (apart ? -1 : 0);
    if (head) ok = ok && layout->bucket[head->bucket].chunk == last;
    if (norm) ok = ok && layout->bucket[norm->bucket].chunk == last;
    return ok && (norm != NULL) == layout->last_stage;
}

// The number of a state of this rank among the N of all tensor ranks; ranks of other models count as states too.
static int state_of_all(const Layout* layout, int state) { return layout->mesh.tensor * layout->states + state; }

// The cut that state number g of N has of a tensor, by its kind: its own heads, the key/value heads that these use, its
// channels of the mlp, its rows of the vocabulary. Rows of the first part of a fused matrix.
static bool cut_is_right(const Slice* s, const ModelConfig* m, int g, int N) {
    const int HS = m->C / m->NH, NH = m->NH / N, F = m->F / N, V = (m->V + N - 1) / N;
    const int first_kv = g * NH / (m->NH / m->NKV), last_kv = (g * NH + NH - 1) / (m->NH / m->NKV);
    const int64_t left = (int64_t)m->V - (int64_t)g * V;
    int64_t row = 0, rows = s->tensor.rows, col = 0, cols = s->tensor.cols, used = -1;
    switch (s->tensor.kind) {
    case WTE:
    case HEAD_W: row = (int64_t)g * V, rows = V, used = left < 0 ? 0 : left < V ? left : V; break;
    case QKV_W:
    case QKV_B: row = (int64_t)g * NH * HS, rows = (int64_t)s->tensor.parts * NH * HS; break;
    case K_W:
    case V_W: row = (int64_t)first_kv * HS, rows = (int64_t)(last_kv - first_kv + 1) * HS; break;
    case ATTN_PROJ_W: col = (int64_t)g * NH * HS, cols = (int64_t)NH * HS; break;
    case FC_W:
    case FC_B:
    case UP_W: row = (int64_t)g * F, rows = F; break;
    case MLP_PROJ_W: col = (int64_t)g * F, cols = F; break;
    default: break;
    }
    return s->rows == rows && s->cols == cols && s->rows_used == (used < 0 ? rows : used) &&
           slice_logical_row(s, 0) == row && slice_logical_col(s) == col;
}

// What is computed with as one matrix lies together, for each state: q, k and v; gate and up; and the rows of the
// vocabulary of all states of a rank.
static bool lies_behind(const Layout* layout, int layer, const Slice* s) {
    const TensorKind kind = s->tensor.kind;
    const Slice* before = NULL;
    if (kind == K_W) before = layout_slice_of_state(layout, layer, QKV_W, s->state);
    if (kind == V_W) before = layout_slice_of_state(layout, layer, K_W, s->state);
    if (kind == UP_W) before = layout_slice_of_state(layout, layer, FC_W, s->state);
    if ((kind == WTE || kind == HEAD_W) && s->state > 0)
        before = layout_slice_of_state(layout, layer, kind, s->state - 1);
    const bool needed = kind == K_W || kind == V_W || kind == UP_W || (s->state > 0 && before);
    return !needed || (before && s->offset == before->offset + before->rows * before->cols);
}

// The numbers of a layout are those of its slices, and its table finds each slice: of what every state has a cut of, one
// for each, and of what is replicated, one for all.
static bool numbers_are_right(const Layout* layout, const ModelConfig* m) {
    const int N = layout->mesh.t * layout->states;
    const bool caat = layout->mesh.sync.ranks > 0;
    int found = 0;
    bool ok = caat ? N == layout->mesh.sync.ranks && layout->shared == (int)floor(layout->mesh.sync.share * m->C)
                   : layout->states == 1;
    ok = ok && layout->channels == m->C && layout->vocabulary == m->V;
    ok = ok && layout->NH == m->NH / N && layout->F == m->F / N && layout->V == (m->V + N - 1) / N;
    ok = ok && layout->NKV == (m->NKV > N ? m->NKV / N : 1);
    for (int layer = -1; layer < layout->layers; layer++) {
        for (int i = 0; i < TENSOR_KINDS * layout->states; i++) {
            const TensorKind kind = (TensorKind)(i / layout->states);
            const int state = i % layout->states;
            const Slice *s = layout_slice_of_state(layout, layer, kind, state),
                        *first = layout_slice(layout, layer, kind);
            if (state == 0) ok = ok && s == first;
            if (first && state > 0) ok = ok && (s != NULL) == (first->tensor.parallel != REPLICATED);
            if (!s) continue;
            found++;
            const bool block = s->tensor.layer >= 0 && s->tensor.layer < m->L;
            ok = ok && s->tensor.kind == kind && s->state == state && block == (layer >= 0);
            int chunk;
            ok = ok && (!block || s->tensor.layer == count_out(layout, m, layer, &chunk));
            ok = ok && cut_is_right(s, m, state_of_all(layout, state), N) && lies_behind(layout, layer, s);
            if (kind != WTE && kind != HEAD_W) continue;
            ok = ok && s->rows == layout->V && s->rows_used == layout_tokens(layout, state);
            ok = ok && slice_logical_row(s, 0) == layout_vocab_offset(layout, state);
        }
    }
    return ok && found == layout->n;
}

// How often every logical element is held and owned, over all ranks of a mesh.
typedef struct {
    int n;
    Tensor* list;
    int **held, **owned;
} Elements;

static Elements elements_new(const ModelConfig* m) {
    Elements e = {model_tensors(NULL, m), NULL, NULL, NULL};
    e.list = (Tensor*)checked_malloc((size_t)e.n * sizeof(Tensor), "test");
    e.held = (int**)checked_malloc((size_t)e.n * sizeof(int*), "test");
    e.owned = (int**)checked_malloc((size_t)e.n * sizeof(int*), "test");
    model_tensors(e.list, m);
    for (int i = 0; i < e.n; i++) {
        const size_t count = (size_t)(e.list[i].rows * e.list[i].cols);
        e.held[i] = (int*)checked_calloc(count, sizeof(int), "test");
        e.owned[i] = (int*)checked_calloc(count, sizeof(int), "test");
    }
    return e;
}

static void elements_free(Elements* e) {
    for (int i = 0; i < e->n; i++) free(e->held[i]), free(e->owned[i]);
    free(e->held);
    free(e->owned);
    free(e->list);
}

// Adds what a rank holds. Of rows beyond those that are used, all are beyond the vocabulary.
static bool elements_add(Elements* e, const Layout* layout) {
    bool ok = true;
    for (int i = 0; i < layout->n; i++) {
        const Slice* s = &layout->slices[i];
        const Tensor* tensor = &e->list[s->index];
        const bool owned = slice_is_owned(s, layout);
        const int64_t col0 = slice_logical_col(s);
        ok = ok && strcmp(tensor->name, s->tensor.name) == 0 && slice_elements(s) == s->rows * s->cols;
        for (int64_t row = 0; row < s->rows && ok; row++) {
            const int64_t logical = slice_logical_row(s, row);
            if (row >= s->rows_used) {
                ok = (tensor->kind == WTE || tensor->kind == HEAD_W) && logical >= tensor->rows;
                continue;
            }
            ok = logical >= 0 && logical < tensor->rows && col0 >= 0 && col0 + s->cols <= tensor->cols;
            for (int64_t c = 0; c < s->cols && ok; c++) {
                e->held[s->index][logical * tensor->cols + col0 + c]++;
                e->owned[s->index][logical * tensor->cols + col0 + c] += owned;
            }
        }
    }
    return ok;
}

// like: sizes, schedule, uneven stages, states.
static void test_layout(const ModelConfig* m, Mesh like) {
    const int t = like.t, p = like.p, d = like.d, N = like.sync.ranks;
    Elements e = elements_new(m);
    bool ok = true;
    for (int rank = 0; rank < t * p * d && ok; rank++) {
        Layout layout;
        Error error;
        if (!layout_build(&layout, m, mesh_like(&like, rank), m->T, &error)) die("%s", error.text);
        ok = elements_add(&e, &layout) && buckets_are_right(&layout, m, d) && numbers_are_right(&layout, m) &&
             chunks_are_right(&layout, m);
        layout_free(&layout);
    }
    for (int i = 0; i < e.n; i++) {
        const int stages = e.list[i].kind == WTE && m->tied && p > 1 && !like.folded ? 2 : 1; // first and last
        const int held = d * stages * expected_copies(&e.list[i], m, t);
        for (int64_t k = 0; k < e.list[i].rows * e.list[i].cols; k++)
            ok = ok && e.held[i][k] == held && e.owned[i][k] == d;
    }
    char states[32] = "";
    if (N) snprintf(states, sizeof states, ", %d states", N);
    check(ok, "%s on t=%d p=%d d=%d, %s of %d%s: every element is held as often as it should be, and owned once",
          m->name, t, p, d, like.folded ? "folded" : "looped", like.v, states);
    elements_free(&e);
}

// All meshes of up to 16 ranks that fit, and uneven stages.
static void test_layouts(const ModelConfig* m) {
    Error error;
    for (int t = 1; t <= 16; t++) {
        for (int p = 1; t * p <= 16; p++) {
            const Mesh mesh = mesh_of_rank(0, t, p, 1);
            if (!mesh_check(&mesh, m, m->T, &error)) continue;
            for (int d = 1; t * p * d <= 16; d++) test_layout(m, mesh_of_rank(0, t, p, d));
        }
    }
    const int wishes[3][3] = {{2, 1, 0}, {3, 0, m->L - 1}, {1, m->L - 1, 1}}; // d, layers of the first and last stage
    for (int i = 0; i < 3; i++) {
        Mesh mesh = mesh_of_rank(0, 1, 2, wishes[i][0]);
        mesh.first_layers = wishes[i][1], mesh.last_layers = wishes[i][2];
        test_layout(m, mesh);
    }
    for (int p = 2; p <= 4; p++) { // chunks
        for (int v = 2; p * v <= m->L; v++) {
            Mesh mesh = mesh_of_rank(0, m->NH % 2 == 0 && m->F % 2 == 0 ? 2 : 1, p, 2);
            mesh.v = v, mesh.folded = false;
            if (mesh_check(&mesh, m, m->T, &error)) test_layout(m, mesh);
            mesh.folded = true;
            if (v == 2 && mesh_check(&mesh, m, m->T, &error)) test_layout(m, mesh);
        }
    }
}

// CAAT-Nets of N states on all t that divide N, in all meshes of up to 8 ranks and in chunks. Returns how many fitted with
// several states on a rank.
static int test_layouts_of_states(const ModelConfig* m, int N) {
    static const double shares[] = {0.5, 0, 0.3, 1};
    Error error;
    int several = 0;
    for (int t = 1; t <= N; t++) {
        if (N % t != 0) continue;
        for (int p = 1; p == 1 || t * p <= 8; p++) {
            for (int d = 1; d == 1 || t * p * d <= 8; d++) {
                Mesh mesh = with_states(mesh_of_rank(0, t, p, d), N, shares[(p + d) % 4]);
                if (!mesh_check(&mesh, m, m->T, &error)) continue;
                test_layout(m, mesh), several += t < N;
                if (p == 1 || 2 * p > m->L) continue;
                mesh.v = 2, mesh.folded = false;
                test_layout(m, mesh);
                mesh.folded = true;
                test_layout(m, mesh);
            }
        }
    }
    return several;
}

// S = (int)(C p) in float64, as the authors' code has it.
static void test_shared_channels(void) {
    static const struct {
        int C;
        double share;
        int S;
    } cases[] = {{768, 0, 0},    {768, 1, 768}, {768, 0.5, 384}, {2048, 0.25, 512}, {32, 0.3, 9},
                 {10, 0.999, 9}, {7, 0.5, 3},   {1, 0.5, 0},     {100, 0.29, 28},   {100, 0.57, 56}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        const CaatConfig sync = {2, cases[i].share, SYNC_RUNTIME, false};
        const int S = sync_channels(&sync, cases[i].C);
        check(S == cases[i].S, "%g of %d channels: %d are shared", cases[i].share, cases[i].C, S);
    }
    bool ok = true;
    for (int scale = SYNC_RUNTIME; scale <= SYNC_NONE; scale++) {
        const CaatConfig sync = {9, 0.5, (SyncScale)scale, false};
        ok = ok && sync_factor(&sync) == (scale == SYNC_RUNTIME ? 3 : 1);
        ok = ok && sync_initial_factor(&sync) == (scale == SYNC_INIT ? 3 : 1);
    }
    check(ok, "9 states: private channels are multiplied by 3 at run time, or in the initial weights, or not at all");
}

// Which gradients tensor ranks have to sum: with sequence parallelism those of norms and positions, in a CAAT-Net those of
// norms and of biases of row-parallel layers, and always those of key/value heads that are shared; never what only one rank
// holds.
static bool partial_is_right(const ModelConfig* m, const Mesh* mesh) {
    static const TensorKind by_rows[] = {WPE, NORM1_W, NORM1_B, NORM2_W, NORM2_B, FINAL_NORM_W, FINAL_NORM_B};
    static const TensorKind by_states[] = {NORM1_W,      NORM1_B,      NORM2_W,     NORM2_B,
                                           FINAL_NORM_W, FINAL_NORM_B, ATTN_PROJ_B, MLP_PROJ_B};
    const bool caat = mesh->sync.ranks > 0 && mesh->t > 1;
    Layout layout;
    Error error;
    if (!layout_build(&layout, m, *mesh, 8, &error)) die("%s", error.text);
    bool ok = true;
    for (int i = 0; i < layout.n; i++) {
        const Slice* s = &layout.slices[i];
        const TensorKind kind = s->tensor.kind;
        const bool shared = (kind == K_W || kind == V_W) && mesh->t > m->NKV;
        const bool expected = shared || (mesh->sequence_parallel && is_one_of(kind, by_rows, 7)) ||
                              (caat && is_one_of(kind, by_states, 8));
        ok = ok && needs_tp_grad_reduce(s, &layout.mesh) == expected;
    }
    layout_free(&layout);
    return ok;
}

static void test_partial(const ModelConfig* m, int t) {
    bool ok = true;
    for (int sequence = 0; sequence <= (t > 1); sequence++) {
        Mesh mesh = mesh_of_rank(0, t, 1, 1);
        mesh.sequence_parallel = sequence;
        ok = ok && partial_is_right(m, &mesh);
    }
    check(ok, "%s on t=%d: gradients that tensor ranks have to sum", m->name, t);
    for (int states = 1; states <= 2; states++) {
        const Mesh mesh = with_states(mesh_of_rank(0, t, 1, 1), t * states, 0.5);
        Error error;
        if (mesh_check(&mesh, m, 8, &error))
            check(partial_is_right(m, &mesh), "%s on t=%d, %d states: gradients that tensor ranks have to sum", m->name,
                  t, t * states);
    }
}

// ----------------------------------------------------------------------------------------------------------------
// What a mesh is refused for

// By the definitions: ranks get equal numbers of whole heads and channels; of key/value heads, those that their query
// heads use, either a part of their own or the same one head as their neighbours; and every rank a token.
static bool tensor_parallel_fits(const ModelConfig* m, int t, bool* ragged) {
    const int heads = m->NH / t, group = m->NH / m->NKV;
    if (heads * t != m->NH || m->F / t * t != m->F || m->V < t) return false;
    *ragged = (t - 1) * ((m->V + t - 1) / t) >= m->V; // the last rank would get no token
    const int width = (heads - 1) / group + 1;        // key/value heads of rank 0
    for (int rank = 0; rank < t; rank++) {
        const int first = rank * heads / group, last = (rank * heads + heads - 1) / group;
        if (last - first + 1 != width || (width > 1 && first != rank * width)) return false;
        if (width == 1 && m->NKV < t && first != rank / (t / m->NKV)) return false;
    }
    return width > 1 || m->NKV <= t; // each key/value head belongs to somebody
}

static void test_tensor_parallel(void) {
    int accepted = 0, refused = 0, ragged = 0, wrong = 0;
    for (int NH = 1; NH <= 12; NH++) {
        for (int NKV = 1; NKV <= NH; NKV++) {
            if (NH % NKV != 0) continue;
            for (int F = 1; F <= 12; F++) {
                for (int V = 1; V <= 20; V++) {
                    const ModelConfig m = model_llama(1, 2 * NH, NH, NKV, F, 8, V);
                    for (int t = 1; t <= 8; t++) {
                        const Mesh mesh = mesh_of_rank(0, t, 1, 1);
                        Error error = {""};
                        bool without_token = false;
                        const bool fits = tensor_parallel_fits(&m, t, &without_token);
                        const bool accepts = mesh_check(&mesh, &m, 8, &error);
                        if (fits && without_token)
                            ragged++; // either is right: padding may be a rank's whole share
                        else if (accepts)
                            accepted++, wrong += !fits;
                        else
                            refused++, wrong += fits || !strstr(error.text, "--tp ");
                    }
                }
            }
        }
    }
    check(wrong == 0 && accepted > 2000,
          "t = 1 .. 8: %d meshes accepted, %d refused, %d wrongly (%d where the last "
          "rank gets no token are left open)",
          accepted, refused, wrong, ragged);
    int sequences = 0;
    bool ok = true;
    for (int t = 1; t <= 8; t++) {
        for (int T = 1; T <= 24; T++, sequences++) {
            const ModelConfig m = model_llama(1, 2 * 840, 840, 840, 840, 24, 840);
            Mesh mesh = mesh_of_rank(0, t, 1, 1);
            mesh.sequence_parallel = true;
            Error error = {""};
            const bool accepts = mesh_check(&mesh, &m, T, &error);
            ok = ok && accepts == (t > 1 && T / t * t == T) && (accepts || strstr(error.text, "--sequence-parallel"));
        }
    }
    check(ok, "sequence parallelism: %d pairs of t and sequence length", sequences);
}

// N states fit on t ranks if each rank gets equally many, if N ranks would fit, and if states of one rank do not share a
// key/value head.
static void test_states_fit(void) {
    int accepted = 0, refused = 0, wrong = 0;
    for (int i = 0; i < 12 * 12 * 12 * 8 * 8; i++) {
        const int NH = i % 12 + 1, NKV = i / 12 % 12 + 1, F = i / 144 % 12 + 1, t = i / 1728 % 8 + 1, N = i / 13824 + 1;
        if (NH % NKV != 0) continue;
        const ModelConfig m = model_llama(1, 2 * NH, NH, NKV, F, 8, 8 * 8);
        const Mesh mesh = with_states(mesh_of_rank(0, t, 1, 1), N, 0.5);
        Error error = {""};
        bool without_token;
        const bool fits = N / t * t == N && tensor_parallel_fits(&m, N, &without_token) && (N == t || NKV >= N);
        const bool accepts = mesh_check(&mesh, &m, 8, &error);
        wrong += fits != accepts || (!accepts && !strstr(error.text, N == t ? "--tp " : "--caat-ranks "));
        accepted += accepts, refused += !accepts;
    }
    check(wrong == 0 && accepted > 500, "t, N = 1 .. 8: %d CAAT-Nets accepted, %d refused by name, %d wrongly",
          accepted, refused, wrong);
}

static void test_refused(void) {
    static const struct {
        int t, p, NH, NKV, F, V, T, first, last;
        bool sequence;
        const char* message; // NULL: it fits
        int N;               // states of a CAAT-Net
    } cases[] = {
        {4, 2, 8, 8, 32, 64, 16, 0, 0, true, NULL, 0},
        {3, 1, 8, 8, 33, 64, 16, 0, 0, false, "--tp 3 does not divide --heads 8", 0},
        {8, 1, 8, 2, 32, 64, 16, 0, 0, false, NULL, 0},
        {6, 1, 12, 4, 36, 64, 16, 0, 0, false, "--tp 6 and --kv-heads 4", 0},
        {4, 1, 12, 6, 36, 64, 16, 0, 0, false, "--tp 4 and --kv-heads 6", 0},
        {4, 1, 8, 8, 30, 64, 16, 0, 0, false, "--tp 4 does not divide --ffn 30", 0},
        {8, 1, 8, 8, 32, 7, 16, 0, 0, false, "--tp 8 is more than --vocab 7", 0},
        {8, 1, 8, 8, 32, 8, 16, 0, 0, false, NULL, 0},
        {1, 1, 8, 8, 32, 64, 16, 0, 0, true, "--sequence-parallel needs --tp 2", 0},
        {4, 1, 8, 8, 32, 64, 18, 0, 0, true, "--tp 4 does not divide --seq 18", 0},
        {4, 1, 8, 8, 32, 64, 18, 0, 0, false, NULL, 0},
        {1, 7, 8, 8, 32, 64, 16, 0, 0, false,
         "--pp 7 stages for --layers 6: a stage needs at least one, so --pp can be at most 6", 0},
        {1, 6, 8, 8, 32, 64, 16, 0, 0, false, NULL, 0},
        {1, 1, 8, 8, 32, 64, 16, 6, 0, false, "--first-stage-layers and --last-stage-layers need a pipeline", 0},
        {1, 1, 8, 8, 32, 64, 16, 0, 1, false, "--first-stage-layers and --last-stage-layers need a pipeline", 0},
        {1, 3, 8, 8, 32, 64, 16, 5, 0, false, "--pp 3 stages with 5 layers in the first and 0 in the last", 0},
        {1, 3, 8, 8, 32, 64, 16, 3, 3, false, "--pp 3 stages with 3 layers in the first and 3 in the last", 0},
        {1, 2, 8, 8, 32, 64, 16, 2, 3, false, "none may be left over", 0},
        {1, 2, 8, 8, 32, 64, 16, 3, 3, false, NULL, 0},
        {1, 3, 8, 8, 32, 64, 16, 1, 4, false, NULL, 0},
        {2, 2, 8, 8, 32, 64, 16, 0, 0, false, NULL, 4},
        {1, 1, 8, 8, 32, 64, 16, 0, 0, false, NULL, 8},
        {8, 1, 8, 2, 32, 64, 16, 0, 0, false, NULL, 8},
        {1, 1, 8, 8, 32, 64, 16, 0, 0, false, NULL, 1},
        {3, 1, 12, 12, 36, 64, 16, 0, 0, false, "--tp 3 does not divide --caat-ranks 4: a rank holds whole states", 4},
        {4, 1, 8, 8, 32, 64, 16, 0, 0, false, "--tp 4 does not divide --caat-ranks 2: a rank holds whole states", 2},
        {4, 1, 8, 8, 32, 64, 16, 0, 0, true, "--sequence-parallel keeps one residual stream for all tensor ranks", 4},
        {2, 1, 8, 8, 32, 64, 16, 0, 0, true, "--sequence-parallel keeps one residual stream for all tensor ranks", 4},
        {2, 1, 8, 2, 32, 64, 16, 0, 0, false, "--caat-ranks 4 on --tp 2 needs at least as many --kv-heads, not 2", 4},
        {2, 1, 12, 6, 36, 64, 16, 0, 0, false, "--caat-ranks 4 and --kv-heads 6", 4},
        {1, 1, 8, 8, 33, 64, 16, 0, 0, false, "--caat-ranks 3 does not divide --heads 8", 3},
        {2, 1, 8, 8, 30, 64, 16, 0, 0, false, "--caat-ranks 4 does not divide --ffn 30", 4},
        {4, 1, 8, 8, 30, 64, 16, 0, 0, false, "--tp 4 does not divide --ffn 30", 4},
        {4, 1, 8, 8, 32, 7, 16, 0, 0, false, "--caat-ranks 8 is more than --vocab 7", 8},
        {2, 7, 8, 8, 32, 64, 16, 0, 0, false, "--pp 7 stages for --layers 6", 4},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        const ModelConfig m = model_llama(6, 48, cases[i].NH, cases[i].NKV, cases[i].F, 32, cases[i].V);
        Mesh mesh = mesh_of_rank(0, cases[i].t, cases[i].p, 1);
        mesh.first_layers = cases[i].first, mesh.last_layers = cases[i].last;
        mesh.sequence_parallel = cases[i].sequence;
        if (cases[i].N) mesh = with_states(mesh, cases[i].N, 0.5);
        Error error = {""};
        Layout layout;
        const bool ok = layout_build(&layout, &m, mesh, cases[i].T, &error);
        check(cases[i].message ? !ok && strstr(error.text, cases[i].message) : ok, "t=%d p=%d: %s", cases[i].t,
              cases[i].p, ok ? "accepted" : error.text);
        layout_free(&layout);
    }
}

// Stages that are too many for the layers.
static void test_refused_stages(void) {
    static const struct {
        int p, v;
        bool folded;
        const char* message; // NULL: it fits
    } cases[] = {
        {2, 3, false, NULL},
        {2, 4, false, "--pp 2 x --vpp 4 stages for --layers 6: a stage needs at least one, so --vpp can be at most 3"},
        {3, 2, true, NULL},
        {4, 2, true, "--pp 4 x --vpp 2 stages for --layers 6: a stage needs at least one, so --pp can be at most 3"},
        {7, 1, false, "--pp 7 stages for --layers 6: a stage needs at least one, so --pp can be at most 6"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        const ModelConfig m = model_llama(6, 48, 8, 8, 32, 16, 64);
        Mesh mesh = mesh_of_rank(0, 1, cases[i].p, 2);
        mesh.v = cases[i].v, mesh.folded = cases[i].folded;
        Error error = {""};
        const bool ok = mesh_check(&mesh, &m, 16, &error);
        check(cases[i].message ? !ok && strstr(error.text, cases[i].message) : ok, "p=%d v=%d: %s", cases[i].p,
              cases[i].v, ok ? "accepted" : error.text);
    }
}

// ----------------------------------------------------------------------------------------------------------------
// Traffic

static Traffic sum_of_traffic(const ModelConfig* m, Mesh like, int B, int T, int k, double element,
                              double* data_expected) {
    Traffic sum = {0, 0, 0, 0, 0};
    *data_expected = 0;
    for (int rank = 0; rank < mesh_size(&like); rank++) {
        Layout layout;
        Error error;
        if (!layout_build(&layout, m, mesh_like(&like, rank), T, &error)) die("%s", error.text);
        const Traffic one = traffic_of_step(&layout, m, B, T, k, (size_t)element);
        sum.layers += one.layers, sum.ends += one.ends, sum.pipeline += one.pipeline, sum.tied += one.tied;
        sum.data += one.data;
        // Of n ranks that reduce x bytes each sends (n - 1) / n of 2 x, or of x once for each of the two halves. The second
        // half is gradients, or, with ZeRO, parameters.
        const double halves = like.zero == 2 ? 4 * k + element : like.zero ? 4 + element : 4 + 4;
        const double share = (like.d - 1.0) / like.d;
        *data_expected += halves * share * (double)layout.elements;
        const Slice* wte = layout_slice(&layout, -1, WTE);
        if (like.zero == 2 && m->tied && like.p == 1 && wte) // its two gradients are reduced one by one
            *data_expected += 4.0 * k * share * (double)layout.bucket[wte->bucket].elements;
        layout_free(&layout);
    }
    return sum;
}

// What the papers say about all ranks together, in bytes of float32; b, s, h are theirs, k micro-batches, n ranks.
//   Narayanan et al. 2021, section 3.2: the four all-reduces of a block, of (b, s, h) elements each, make a rank send
//   8 b s h (t - 1) / t elements a micro-batch. A message between stages has b s h; section 4.1: b s h / t if it is
//   scattered, and then it is all-gathered.
//   Korthikanti et al. 2022, section 4.2.2: all-gathers and reduce-scatters in their place cost the same; keeping the
//   inputs of the two column-parallel matrices as parts costs two more all-gathers, 10 instead of 8.
//   Recomputing a block: one of its all-reduces again (the second one's result is not needed), 10 instead of 8; with
//   sequence parallelism two all-gathers and a reduce-scatter, 13 instead of 10.
//   CAAT-Net (Lamprecht et al. 2025, and its authors' code): of N states, of which a rank holds N / t; the same sums in a
//   block, two on each way, of S channels; those on the way back in float32, or not. At the embedding one sum of all channels
//   on each way, at the head none. Each state's stream goes to the next stage: no two ranks have the same. Every tensor rank
//   sees its own states' part of the gradients of norms and of biases behind a sum.
// Returns the largest relative error of the numbers that are counted; `element`: bytes of an activation.
static double traffic_error(const ModelConfig* m, Mesh mesh, double element) {
    const double b = 2, s = 8, h = m->C, k = 3, t = mesh.t, p = mesh.p, d = mesh.d;
    const double part = (t - 1) / t, bsh = element * b * s * h; // bytes
    const bool sequence = mesh.sequence_parallel, full = mesh.recompute == RECOMPUTE_FULL, caat = mesh.sync.ranks > 0;
    const bool gpt2 = m->arch == ARCH_GPT2;
    double data;
    const Traffic sum = sum_of_traffic(m, mesh, 2, 8, 3, element, &data);
    const double S = floor(mesh.sync.share * h), back = mesh.sync.narrow ? element : 4; // shared; bytes on the way back
    const double times = sequence ? full ? 13 : 10 : full ? 10 : 8;
    const double caat_block = 2 * b * s * S * ((full ? 3 : 2) * element + 2 * back);
    const double layers = t * d * k * m->L * part * (caat ? caat_block : times * bsh);
    // Embedding: 2 halves of a sum. Head: 2, with sequence parallelism 3. Cross-entropy: three numbers a token, summed.
    const double whole = caat ? 2 * b * s * h * (element + back) : (2 + (sequence ? 3 : 2)) * bsh;
    double ends = t * d * k * part * (whole + 3 * 2 * 4 * b * s);
    // Both directions of each boundary between two of p v parts: if they are scattered, all parts. In a V the two parts in
    // the middle lie on one rank.
    const double boundaries = p * mesh.v - 1, away = boundaries - (mesh.folded ? 1 : 0);
    double messages = 2 * away * d * k * bsh;
    if (!sequence && !caat && !mesh.scatter) messages *= t;
    if (caat) messages *= mesh.sync.ranks;
    if (!sequence && !caat && mesh.scatter) ends += 2 * boundaries * t * d * k * bsh * part;
    // Gradients that tensor ranks sum: 2 (c - 1) / c of their elements on each of c ranks, so 2 (c - 1) in each group.
    const double norms = (gpt2 ? 2 : 1) * (2.0 * m->L + 1) * h, positions = gpt2 ? m->T * h : 0;
    const double biases = gpt2 ? 2.0 * m->L * h : 0; // behind a sum
    const double copies = t > m->NKV ? t / m->NKV : 1, reductions = mesh.zero == 2 ? k : 1;
    const double heads = 2.0 * m->L * m->NKV * (h / m->NH) * h; // all elements of K_W and V_W
    if (sequence) ends += d * reductions * 4 * 2 * (t - 1) * (norms + positions);
    if (caat) ends += d * reductions * 4 * 2 * (t - 1) * (norms + biases);
    ends += d * reductions * 4 * 2 * (copies - 1) * heads;
    const double cuts = caat ? mesh.sync.ranks : t, rows = ceil(m->V / cuts) * (cuts / t);
    const double bucket = ceil(rows * h / (16 * d)) * 16 * d;
    const double tied = m->tied && p > 1 && !mesh.folded ? 2 * t * d * 4 * bucket / (mesh.zero ? d : 1) : 0;
    const double expected[] = {layers, ends, messages, tied, data};
    const double counted[] = {sum.layers, sum.ends, sum.pipeline, sum.tied, sum.data};
    double worst = 0;
    for (int i = 0; i < 5; i++) {
        const double error = expected[i] > 0 ? fabs(counted[i] / expected[i] - 1) : fabs(counted[i]);
        if (!(error <= worst)) worst = error == error ? error : INFINITY;
    }
    return worst;
}

static const double TRAFFIC_BOUND = 1e-12; // sums of fewer than 1000 numbers, each rounded to 2^-53

static void test_traffic(const ModelConfig* m, Mesh mesh) {
    char what[128];
    snprintf(what, sizeof what, "%s t=%d p=%d d=%d %s %s%s%s zero %d: bytes of %d ranks", m->name, mesh.t, mesh.p,
             mesh.d, mesh.folded ? "folded" : "looped", mesh.sequence_parallel ? "sequence " : "",
             mesh.scatter ? "scatter " : "", mesh.recompute == RECOMPUTE_FULL ? "full" : "", mesh.zero,
             mesh_size(&mesh));
    check_error(what, traffic_error(m, mesh, sizeof(float)), TRAFFIC_BOUND);
    check_error("  the same with elements of 2 bytes", traffic_error(m, mesh, 2), TRAFFIC_BOUND);
}

// A CAAT-Net of N states on a mesh of these sizes, in all other ways that there are. Returns whether it fits.
static bool test_traffic_of_states(const ModelConfig* m, Mesh mesh, int N) {
    static const double shares[] = {0.5, 0.3, 1, 0};
    double worst = 0;
    int cases = 0;
    for (int way = 0; way < 96;
         way++) { // scatter, full, narrow, zero, bytes; the share and the schedule change with it
        Mesh like = with_states(mesh, N, shares[(way + way / 4) % 4]);
        like.scatter = way & 1, like.sync.narrow = way >> 2 & 1, like.zero = way / 8 % 3;
        like.recompute = way >> 1 & 1 ? RECOMPUTE_FULL : RECOMPUTE_NONE;
        like.v = way >= 48 ? 2 : 1, like.folded = way >= 48 && way % 2;
        Error error;
        if ((like.v > 1 && like.p == 1) || (like.folded && like.zero == 2)) continue; // by pipeline_config_check
        if (!mesh_check(&like, m, 8, &error)) continue;
        worst = fmax(worst, traffic_error(m, like, way / 24 % 2 ? sizeof(float) : 2)), cases++;
    }
    char what[128];
    snprintf(what, sizeof what, "%s t=%d p=%d d=%d, %d states: bytes of all ranks, %d ways", m->name, mesh.t, mesh.p,
             mesh.d, N, cases);
    if (cases) check_error(what, worst, TRAFFIC_BOUND);
    return cases > 0;
}

static void test_traffics(const ModelConfig* m) {
    static const int meshes[][3] = {{1, 1, 1}, {2, 1, 1}, {1, 2, 1}, {1, 1, 2},
                                    {2, 2, 1}, {2, 3, 2}, {4, 2, 3}, {4, 1, 4}};
    for (size_t i = 0; i < sizeof meshes / sizeof meshes[0]; i++) {
        for (int way = 0; way < 24; way++) { // sequence, scatter, full, zero
            Mesh mesh = mesh_of_rank(0, meshes[i][0], meshes[i][1], meshes[i][2]);
            mesh.sequence_parallel = way & 1, mesh.scatter = way >> 1 & 1, mesh.zero = way >> 3;
            mesh.recompute = way >> 2 & 1 ? RECOMPUTE_FULL : RECOMPUTE_SELECTIVE;
            if (mesh.sequence_parallel && mesh.t == 1) continue;
            test_traffic(m, mesh);
            Error error;
            mesh.v = 2, mesh.folded = way % 2 == 0;
            const bool refused = mesh.p == 1 || (mesh.folded && mesh.zero == 2); // by pipeline_config_check
            if (!refused && mesh_check(&mesh, m, 8, &error)) test_traffic(m, mesh);
        }
    }
    int several = 0;
    for (size_t i = 0; i < sizeof meshes / sizeof meshes[0]; i++) {
        const Mesh mesh = mesh_of_rank(0, meshes[i][0], meshes[i][1], meshes[i][2]);
        test_traffic_of_states(m, mesh, mesh.t);
        several += test_traffic_of_states(m, mesh, 2 * mesh.t);
    }
    check(several > 0, "%s: with several states on a rank too", m->name);
}

// One number by hand: gpt3-1.7B on t = 2, p = 2, d = 2, one micro-batch of one sequence, from the first stage.
static void test_traffic_by_hand(void) {
    const ModelConfig* m = model_find_preset("gpt3-1.7B"); // h = 2304, 24 layers, V = 51200, s = 2048
    Layout layout;
    Error error;
    if (!layout_build(&layout, m, mesh_of_rank(0, 2, 2, 2), 2048, &error)) die("%s", error.text);
    const Traffic traffic = traffic_of_step(&layout, m, 1, 2048, 1, sizeof(float));
    check(traffic.layers == 12.0 * 75497472, "12 blocks: 8 b s h / 2 x 4 bytes = 75,497,472 each");
    check(traffic.pipeline == 9437184, "a message: b s h / 2 x 4 bytes = 9,437,184");
    check(traffic.ends == 18874368 + 9437184, "the sum of the embedding, b s h x 4; gathering a message, half of that");
    check(traffic.tied == 235929600, "the embedding's gradient: 25,600 x 2,304 x 4 bytes");
    check(traffic.data == 4.0 * (double)layout.elements, "gradients, 2 (d - 1) / d of them");
    layout_free(&layout);
}

// The same model and rank as a CAAT-Net that shares half of its 2304 channels, in bf16: 12 p b s h bytes a block, where
// without it there are 8 b s h; on t = 2, n ranks send 2 (t - 1) / t = once what they sum.
static void test_traffic_of_states_by_hand(void) {
    const ModelConfig* m = model_find_preset("gpt3-1.7B");
    Layout layout;
    Error error;
    Mesh mesh = mesh_of_rank(0, 2, 2, 2);
    if (!layout_build(&layout, m, mesh, 2048, &error)) die("%s", error.text);
    const Traffic usual = traffic_of_step(&layout, m, 1, 2048, 1, 2);
    check(usual.layers == 12.0 * 37748736, "12 blocks in bf16: four sums of b s h x 2 bytes = 37,748,736 each");
    layout_free(&layout);
    for (int narrow = 0; narrow < 2; narrow++) {
        mesh = with_states(mesh_of_rank(0, 2, 2, 2), 4, 0.5), mesh.sync.narrow = narrow;
        if (!layout_build(&layout, m, mesh, 2048, &error)) die("%s", error.text);
        const Traffic traffic = traffic_of_step(&layout, m, 1, 2048, 1, 2);
        if (narrow)
            check(traffic.layers == 12.0 * 18874368, "half of the channels, all in bf16: half of that");
        else
            check(traffic.layers == 12.0 * 28311552,
                  "half of the channels, back in float32: 12 / 2 b s h = 28,311,552 bytes, three quarters");
        check(traffic.pipeline == 2 * 9437184.0,
              "messages: the streams of two states, b s h x 2 bytes = 9,437,184 each");
        // In a block 4 vectors of norms and 2 biases of 2,304 float32.
        check(traffic.ends == (narrow ? 2 : 3) * 9437184.0 + 12 * 6 * 2304 * 4.0,
              "the embedding, whole, and back %s; gradients of norms and biases", narrow ? "the same" : "in float32");
        check(traffic.data == 4.0 * (double)layout.elements, "gradients, 2 (d - 1) / d of them");
        layout_free(&layout);
    }
}

// A fused q, k, v matrix cut over two ranks: rank 1 holds the second half of q, of k and of v.
static void test_fused_rows(void) {
    const ModelConfig m = model_gpt2(1, 4, 2, 8, 10);
    Layout layout;
    Error error;
    check(layout_build(&layout, &m, mesh_of_rank(1, 2, 1, 1), 8, &error), "a tiny gpt2 on t=2");
    const int64_t expected[] = {2, 3, 6, 7, 10, 11};
    bool ok = false;
    for (int i = 0; i < layout.n; i++) {
        const Slice* s = &layout.slices[i];
        if (s->tensor.kind != QKV_W) continue;
        ok = s->rows == 6;
        for (int64_t r = 0; r < 6; r++) ok = ok && slice_logical_row(s, r) == expected[r];
    }
    check(ok, "rank 1 of 2 holds rows 2 3 | 6 7 | 10 11 of a fused q, k, v matrix with 12 rows");
    layout_free(&layout);
}

// Four states of a tiny llama on two ranks, by hand: what rank 1 holds, in memory order, with the first row or column.
static void test_states_by_hand(void) {
    const ModelConfig m = model_llama(1, 16, 8, 4, 24, 8, 10); // heads of 2
    static const struct {
        TensorKind kind;
        int state, rows, cols, row, col, used;
    } expected[] = {
        {WTE, 0, 3, 16, 6, 0, 3},           {WTE, 1, 3, 16, 9, 0, 1},           {NORM1_W, 0, 16, 1, 0, 0, 16},
        {QKV_W, 0, 4, 16, 8, 0, 4},         {K_W, 0, 2, 16, 4, 0, 2},           {V_W, 0, 2, 16, 4, 0, 2},
        {QKV_W, 1, 4, 16, 12, 0, 4},        {K_W, 1, 2, 16, 6, 0, 2},           {V_W, 1, 2, 16, 6, 0, 2},
        {ATTN_PROJ_W, 0, 16, 4, 0, 8, 16},  {ATTN_PROJ_W, 1, 16, 4, 0, 12, 16}, {NORM2_W, 0, 16, 1, 0, 0, 16},
        {FC_W, 0, 6, 16, 12, 0, 6},         {UP_W, 0, 6, 16, 12, 0, 6},         {FC_W, 1, 6, 16, 18, 0, 6},
        {UP_W, 1, 6, 16, 18, 0, 6},         {MLP_PROJ_W, 0, 16, 6, 0, 12, 16},  {MLP_PROJ_W, 1, 16, 6, 0, 18, 16},
        {FINAL_NORM_W, 0, 16, 1, 0, 0, 16}, {HEAD_W, 0, 3, 16, 6, 0, 3},        {HEAD_W, 1, 3, 16, 9, 0, 1},
    };
    Layout layout;
    Error error;
    if (!layout_build(&layout, &m, with_states(mesh_of_rank(1, 2, 1, 1), 4, 0.5), 8, &error)) die("%s", error.text);
    const int n = sizeof expected / sizeof expected[0];
    bool ok = layout.n == n;
    for (int i = 0; i < n && ok; i++) {
        const Slice* s = &layout.slices[i];
        ok = s->tensor.kind == expected[i].kind && s->state == expected[i].state && s->rows == expected[i].rows &&
             s->cols == expected[i].cols && slice_logical_row(s, 0) == expected[i].row &&
             slice_logical_col(s) == expected[i].col && s->rows_used == expected[i].used;
    }
    check(ok, "states 2 and 3 of 4 on rank 1 of 2: %d slices of a tiny llama", layout.n);
    check(layout.NH == 2 && layout.NKV == 1 && layout.F == 6 && layout.shared == 8 && layout_tokens(&layout, 0) == 3 &&
              layout_tokens(&layout, 1) == 1 && layout_vocab_offset(&layout, 1) == 9,
          "each with 2 heads, a key/value head, 6 channels, tokens 6 .. 8 and 9; 8 of 16 channels are shared");
    layout_free(&layout);
}

// True if a rank's initial values are slices of those of one rank (a); *zero stays true if all others are zero. Rows from
// private_rows on of the two matrices that write into the residual stream are `factor` times those: 4 roundings, of the factor,
// of the deviation and of both values.
static bool is_part_of(const Layout* part, const Layout* whole, const float* a, int private_rows, double factor,
                       bool* zero) {
    float* b = (float*)checked_calloc((size_t)part->elements, sizeof(float), "test");
    bool same = true;
    layout_initialize(b, part, 7);
    for (int i = 0; i < part->n; i++) {
        const Slice *s = &part->slices[i], *w = &whole->slices[s->index];
        const bool writes = s->tensor.kind == ATTN_PROJ_W || s->tensor.kind == MLP_PROJ_W;
        for (int64_t r = 0; r < s->rows_used; r++) {
            const float* from = a + w->offset + slice_logical_row(s, r) * w->cols + slice_logical_col(s);
            float* values = b + s->offset + r * s->cols;
            const bool scaled = factor != 1 && writes && r >= private_rows;
            if (!scaled) same = same && memcmp(values, from, (size_t)s->cols * sizeof(float)) == 0;
            for (int64_t c = 0; c < s->cols && scaled; c++)
                same = same && fabs(values[c] - factor * from[c]) <= 4 * 0x1p-24 * fabs(factor * from[c]);
            memset(values, 0, (size_t)s->cols * sizeof(float));
        }
    }
    for (int64_t e = 0; e < part->elements; e++) *zero = *zero && b[e] == 0;
    free(b);
    return same;
}

// The states of a CAAT-Net begin with slices of what any other mesh has; or, where it is asked for, with the rows that make
// private channels larger by sqrt(N).
static void test_initial_states(const Layout* whole, const ModelConfig* m, const float* a) {
    static const struct {
        int N, t, p;
        double share;
        int S; // of 32 channels
    } cases[] = {{4, 1, 1, 0.5, 16}, {4, 2, 2, 0.3, 9}, {4, 4, 1, 0, 0},   {2, 1, 2, 0.9, 28},
                 {8, 8, 1, 0.5, 16}, {2, 2, 1, 1, 32},  {1, 1, 1, 0.5, 16}};
    Layout part;
    Error error;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        bool same = true, zero = true;
        for (int scale = SYNC_RUNTIME; scale <= SYNC_NONE; scale++) {
            Mesh mesh = with_states(mesh_of_rank(0, cases[i].t, cases[i].p, 1), cases[i].N, cases[i].share);
            mesh.sync.scale = (SyncScale)scale;
            for (int rank = 0; rank < mesh_size(&mesh); rank++) {
                if (!layout_build(&part, m, mesh_like(&mesh, rank), 16, &error)) die("%s", error.text);
                const double factor = scale == SYNC_INIT ? sqrt(cases[i].N) : 1;
                same = same && is_part_of(&part, whole, a, cases[i].S, factor, &zero);
                layout_free(&part);
            }
        }
        check(same && zero, "initial values of %d states on t=%d p=%d: slices, with rows from %d on scaled or not",
              cases[i].N, cases[i].t, cases[i].p, cases[i].S);
    }
}

// Initial values do not depend on the mesh, have the right spread, and differ between tensors.
static void test_initial_values(void) {
    const ModelConfig m = model_llama(2, 32, 8, 4, 48, 16, 61);
    Layout whole, part;
    Error error;
    check(layout_build(&whole, &m, mesh_of_rank(0, 1, 1, 1), 16, &error), "one rank");
    float* a = (float*)checked_calloc((size_t)whole.elements, sizeof(float), "test");
    layout_initialize(a, &whole, 7);
    static const int meshes[][2] = {{2, 2}, {8, 1}}; // the second: heads on two ranks, 61 tokens on 8
    bool same = true, zero = true;
    for (int i = 0; i < 2; i++) {
        for (int rank = 0; rank < meshes[i][0] * meshes[i][1]; rank++) {
            if (!layout_build(&part, &m, mesh_of_rank(rank, meshes[i][0], meshes[i][1], 1), 16, &error))
                die("%s", error.text);
            same = same && is_part_of(&part, &whole, a, 0, 1, &zero);
            layout_free(&part);
        }
    }
    bool spread = true; // for L = 2: 0.02, in the two matrices that write into the residual stream 0.02 / sqrt(4)
    for (int i = 0; i < whole.n; i++) {
        const Tensor* w = &whole.slices[i].tensor;
        const bool residual = w->kind == ATTN_PROJ_W || w->kind == MLP_PROJ_W;
        spread = spread && w->init_mean == (w->vector ? 1 : 0) &&
                 fabs(w->init_std - (w->vector  ? 0
                                     : residual ? 0.01
                                                : 0.02)) < 1e-15;
    }
    check(spread, "means and spreads of a llama's initial values are those of the papers");
    check(same, "initial values on t=2 p=2, and on t=8, are slices of those on one rank, bit for bit");
    check(zero, "and what pads the vocabulary, and buckets, is zero");
    // Of n normal numbers the mean has standard deviation std / sqrt(n), the variance var sqrt(2 / n): five of each.
    for (int i = 0; i < whole.n; i++) {
        const Slice* s = &whole.slices[i];
        if (s->tensor.init_std == 0) continue;
        const double n = (double)(s->rows * s->cols), std = s->tensor.init_std;
        double sum = 0, squares = 0;
        for (int64_t e = 0; e < s->rows * s->cols; e++)
            sum += a[s->offset + e], squares += (double)a[s->offset + e] * a[s->offset + e];
        if (s->tensor.layer > 0 && s->tensor.layer < m.L) continue;
        check_error(s->tensor.name, fabs(sum / n) / std, 5 / sqrt(n));
        check_error(s->tensor.name, fabs(squares / n / (std * std) - 1), 5 * sqrt(2 / n));
    }
    test_initial_states(&whole, &m, a);
    free(a);
    layout_free(&whole);
}

// Philox4x32-10 against the test vectors of Random123 (Salmon et al. 2011, file kat_vectors).
static void test_philox(void) {
    const Random4 zero = philox(0, 0, 0), ones = philox(~0ull, ~0ull, ~0ull);
    const Random4 pi = philox(0x299f31d0a4093822ull, 0x0370734413198a2eull, 0x85a308d3243f6a88ull);
    check(zero.word[0] == 0x6627e8d5u && zero.word[1] == 0xe169c58du && zero.word[2] == 0xbc57ac4cu &&
              zero.word[3] == 0x9b00dbd8u,
          "Philox4x32-10 of zeros");
    check(ones.word[0] == 0x408f276du && ones.word[1] == 0x41c83b0eu && ones.word[2] == 0xa20bc7c6u &&
              ones.word[3] == 0x6d5451fdu,
          "Philox4x32-10 of ones");
    check(pi.word[0] == 0xd16cfe09u && pi.word[1] == 0x94fdccebu && pi.word[2] == 0x5001e420u &&
              pi.word[3] == 0x24126ea1u,
          "Philox4x32-10 of digits of pi");
}

static bool parses(const char* a, const char* b, const char* c, Error* error) {
    int64_t number = 3;
    double real = 0.5;
    const char* text = NULL;
    int choice = 0;
    bool flag = false;
    Option table[] = {option_heading("things"),
                      option_int("number", &number, 1, 10, ""),
                      option_float("real", &real, 0, 1, ""),
                      option_string("text", &text, "TEXT", ""),
                      option_choice("choice", &choice, "one|two|three", ""),
                      option_flag("flag", &flag, "")};
    char words[4][64] = {"program"};
    char* argv[4] = {words[0], words[1], words[2], words[3]};
    int argc = 1;
    const char* given[] = {a, b, c};
    for (int i = 0; i < 3 && given[i]; i++) snprintf(words[argc++], sizeof words[0], "%s", given[i]);
    error->text[0] = 0;
    const bool ok = options_parse(table, 6, argc, argv, error);
    return ok && (a == NULL || number != 3 || real != 0.5 || text || choice || flag);
}

static void test_options(void) {
    static const struct {
        const char *a, *b, *c, *message; // NULL: accepted
    } cases[] = {
        {NULL, NULL, NULL, NULL},
        {"--number", "7", NULL, NULL},
        {"--number=10", NULL, NULL, NULL},
        {"--choice", "three", "--flag", NULL},
        {"--real=1e-3", "--text", "--flag", NULL},
        {"--nubmer", "7", NULL, "did you mean --number?"},
        {"--xyzzyxyzzy", NULL, NULL, "unknown option --xyzzyxyzzy"},
        {"--number", NULL, NULL, "the value is missing"},
        {"--number", "7x", NULL, "not a whole number"},
        {"--number", "", NULL, "not a whole number"},
        {"--number", "11", NULL, "out of range, 1 to 10"},
        {"--number", "99999999999999999999", NULL, "not a whole number"},
        {"--number=1", "--number=4", NULL, NULL},
        {"--real", "nan", NULL, "out of range"},
        {"--real", "2", NULL, "out of range, 0 to 1"},
        {"--choice", "tw", NULL, "has to be one of one|two|three"},
        {"--flag=1", NULL, NULL, "takes no value"},
        {"--text=", NULL, NULL, "empty value"},
        {"number", "7", NULL, "options are written --name value"},
        {"--", NULL, NULL, "options are written --name value"},
        {"--things", NULL, NULL, "unknown option --things"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        Error error;
        const bool ok = parses(cases[i].a, cases[i].b, cases[i].c, &error);
        const bool right = cases[i].message ? !ok && strstr(error.text, cases[i].message) : ok;
        check(right, "options %s %s: %s", cases[i].a ? cases[i].a : "(none)", cases[i].b ? cases[i].b : "",
              ok ? "accepted" : error.text);
    }
}

int main(void) {
    static const char* const names[] = {"gpt2 tied", "gpt2 untied", "llama untied", "llama tied",
                                        "llama, one key/value head"};
    ModelConfig models[] = {model_of(ARCH_GPT2, 5, 24, 12, 12, 48, 8, 21),
                            model_of(ARCH_GPT2, 4, 32, 16, 16, 32, 8, 19), model_llama(4, 32, 8, 2, 48, 8, 23),
                            model_llama(3, 24, 12, 4, 24, 8, 50), model_llama(2, 30, 15, 1, 15, 8, 9)};
    for (int i = 0; i < 5; i++) {
        models[i].name = names[i];
        models[i].tied = i != 1 && i != 2;
    }
    test_presets();
    test_groups();
    test_stages();
    for (int i = 0; i < 5; i++) test_layouts(&models[i]);
    test_shared_channels();
    for (int i = 0; i < 5; i++) {
        int several = 0;
        for (int N = 1; N <= 16; N++) several += test_layouts_of_states(&models[i], N);
        check((several > 0) == (models[i].NKV > 1), "%s: %d meshes had several states on a rank", models[i].name,
              several);
    }
    for (int t = 1; t <= 8; t *= 2) test_partial(&models[1], t), test_partial(&models[2], t);
    test_tensor_parallel();
    test_states_fit();
    test_refused();
    test_refused_stages();
    for (int i = 0; i < 4; i++) test_traffics(&models[i]);
    test_traffic_by_hand();
    test_traffic_of_states_by_hand();
    test_fused_rows();
    test_states_by_hand();
    test_initial_values();
    test_philox();
    test_options();
    return test_end();
}
