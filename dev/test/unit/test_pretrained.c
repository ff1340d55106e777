/*
test_pretrained.c: what models say of themselves: checkpoint/hf_config.h against configurations as they are published,
and against what must not be taken for a model of ours; scaled rotary positions against the numbers of transformers;
checkpoint/llmc_format.h against files made byte by byte here, whole and damaged in every way. (Weights on meshes, in
and out: test_pretrained.py. Logits beside transformers: check_transformers.py.)

    ./test_pretrained      ./test_pretrained --short    fewer damaged files, for the sanitizers
*/
#include "../../../checkpoint/pretrained.h"
#include "test.h"

static char path[512];

static void write_file(const void* data, size_t size) {
    unlink(path); // or some file systems wait for the disk
    write_bytes(path, data, size);
}

static bool read_text(ModelConfig* m, const char* text, Error* error) {
    write_file(text, strlen(text));
    return config_read(m, path, error);
}

// ---- config.json ------------------------------------------------------------------------------------------------

static const char gpt2_text[] =
    "{\"activation_function\": \"gelu_new\", \"architectures\": [\"GPT2LMHeadModel\"], \"attn_pdrop\": 0.1,"
    "\"bos_token_id\": 50256, \"embd_pdrop\": 0.1, \"eos_token_id\": 50256, \"initializer_range\": 0.02,"
    "\"layer_norm_epsilon\": 1e-05, \"model_type\": \"gpt2\", \"n_ctx\": 1024, \"n_embd\": 768, \"n_head\": 12,"
    "\"n_layer\": 12, \"n_positions\": 1024, \"resid_pdrop\": 0.1, \"summary_activation\": null,"
    "\"task_specific_params\": {\"text-generation\": {\"do_sample\": true, \"max_length\": 50}},"
    "\"vocab_size\": 50257}";
static const char smollm_text[] =
    "{\"architectures\": [\"LlamaForCausalLM\"], \"attention_bias\": false, \"attention_dropout\": 0.0, \"head_dim\": "
    "64,"
    "\"hidden_act\": \"silu\", \"hidden_size\": 576, \"intermediate_size\": 1536, \"max_position_embeddings\": 8192,"
    "\"mlp_bias\": false, \"model_type\": \"llama\", \"num_attention_heads\": 9, \"num_hidden_layers\": 30,"
    "\"num_key_value_heads\": 3, \"pretraining_tp\": 1, \"rms_norm_eps\": 1e-05, \"rope_scaling\": null,"
    "\"rope_theta\": 100000, \"tie_word_embeddings\": true, \"torch_dtype\": \"bfloat16\", \"vocab_size\": 49152}";
static const char llama3_text[] =
    "{\"architectures\": [\"LlamaForCausalLM\"], \"head_dim\": 64, \"hidden_act\": \"silu\", \"hidden_size\": 2048,"
    "\"intermediate_size\": 8192, \"max_position_embeddings\": 131072, \"model_type\": \"llama\","
    "\"num_attention_heads\": 32, \"num_hidden_layers\": 16, \"num_key_value_heads\": 8, \"rms_norm_eps\": 1e-05,"
    "\"rope_scaling\": {\"factor\": 32.0, \"high_freq_factor\": 4.0, \"low_freq_factor\": 1.0,"
    "\"original_max_position_embeddings\": 8192, \"rope_type\": \"llama3\"}, \"rope_theta\": 500000.0,"
    "\"tie_word_embeddings\": true, \"vocab_size\": 128256}";
static const char small_text[] = "{\"model_type\": \"llama\", \"num_hidden_layers\": 2, \"hidden_size\": 8,"
                                 "\"num_attention_heads\": 2, \"intermediate_size\": 12, \"vocab_size\": 5";

static void test_published(void) {
    ModelConfig m, again;
    Error error;
    char text[4 * CONFIG_TEXT];
    const ModelConfig gpt2 = *model_find_preset("gpt2-124M");
    ModelConfig smollm = model_llama(30, 576, 9, 3, 1536, 8192, 49152);
    smollm.tied = true;
    smollm.rope_theta = 1e5;
    ModelConfig llama3 = model_llama(16, 2048, 32, 8, 8192, 131072, 128256);
    llama3.tied = true;
    llama3.rope_theta = 5e5;
    llama3.rope_scaling.factor = 32;
    llama3.rope_scaling.low = 1;
    llama3.rope_scaling.high = 4;
    llama3.rope_scaling.original = 8192;
    ModelConfig linear = model_llama(2, 8, 2, 2, 12, 2048, 5);
    linear.eps = 1e-6;
    linear.rope_scaling.factor = 2.5;
    ModelConfig plain = model_llama(2, 8, 2, 2, 12, 2048, 5);
    plain.eps = 1e-6;
    ModelConfig theta = plain, wide = gpt2;
    theta.rope_theta = 777;
    wide.F = 512;
    wide.tied = false;
    wide.eps = 1.0 / 3;
    wide.T = 1024;
    const struct {
        const char *name, *text, *more;
        const ModelConfig* expected;
    } cases[] = {
        {"gpt2", gpt2_text, "", &gpt2},
        {"SmolLM-135M", smollm_text, "", &smollm},
        {"Llama-3.2-1B", llama3_text, "", &llama3},
        {"what is not said", small_text, "}", &plain},
        {"null is not said", small_text, ",\"num_key_value_heads\":null,\"rope_scaling\":null,\"head_dim\":null}",
         &plain},
        {"an old name of the scaling's type", small_text, ",\"rope_scaling\":{\"type\":\"linear\",\"factor\":2.5}}",
         &linear},
        {"both in rope_parameters", small_text, ",\"rope_parameters\":{\"rope_type\":\"default\",\"rope_theta\":777}}",
         &theta},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        snprintf(text, sizeof text, "%s%s", cases[i].text, cases[i].more);
        bool ok = read_text(&m, text, &error);
        check(ok && model_same(&m, cases[i].expected), "config.json of %s%s%s", cases[i].name, ok ? "" : ": ",
              ok ? "" : error.text);
        config_write(text, &m, "float32", "");
        ok = ok && read_text(&again, text, &error) && model_same(&again, &m);
        check(ok, "config.json of %s, written and read again", cases[i].name);
    }
    config_write(text, &wide, "bfloat16", ",\n  \"sync\": 1");
    check(read_text(&m, text, &error) && model_same(&m, &wide) && strcmp(m.name, "custom") == 0,
          "an untied gpt2 with an mlp and an eps of its own");
    check(read_text(&m, gpt2_text, &error) && strcmp(m.name, "gpt2-124M") == 0, "a published shape has its name");
    check(read_text(
              &m, "{\"architectures\":[\"GPT2LMHeadModel\"],\"n_layer\":1,\"n_embd\":2,\"n_head\":1,\"vocab_size\":3}",
              &error) &&
              m.hub == HUB_GPT2 && m.F == 8 && m.T == 1024 && m.tied,
          "the architecture without model_type");
}

// Which tokens begin and end a text, in a vocabulary of V, as they are read, and written again; NULL: refused.
static void test_roles(void) {
    static const struct {
        const char *model, *more;
        int V;
        const char* written;
    } cases[] = {
        {"gpt2", "", 50257, ",\n  \"bos_token_id\": 50256,\n  \"eos_token_id\": 50256"},
        {"gpt2", "", 50256, ",\n  \"bos_token_id\": null,\n  \"eos_token_id\": null"},
        {"llama", "", 32000, ",\n  \"bos_token_id\": 1,\n  \"eos_token_id\": 2"},
        {"llama", ",\"eos_token_id\":null", 32000, ",\n  \"bos_token_id\": 1,\n  \"eos_token_id\": null"},
        {"llama", ",\"bos_token_id\":128000,\"eos_token_id\":[128001,128008,128009],\"pad_token_id\":7", 128256,
         ",\n  \"bos_token_id\": 128000,\n  \"eos_token_id\": [128001, 128008, 128009],\n  \"pad_token_id\": 7"},
        {"llama", ",\"bos_token_id\":0,\"eos_token_id\":[5,-1,100,99],\"pad_token_id\":-1", 100,
         ",\n  \"bos_token_id\": 0,\n  \"eos_token_id\": [5, 99]"},
        {"llama", ",\"eos_token_id\":[]", 100, ",\n  \"bos_token_id\": 1,\n  \"eos_token_id\": null"},
        {"llama", ",\"eos_token_id\":\"</s>\"", 100, NULL},
        {"llama", ",\"eos_token_id\":[1,[2]]", 100, NULL},
        {"llama", ",\"bos_token_id\":1.5", 100, NULL},
        {"llama", ",\"eos_token_id\":[0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16]", 100, NULL},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        char text[512], written[CONFIG_ROLES_TEXT] = "";
        TokenRoles roles;
        Error error;
        const int n = snprintf(text, sizeof text, "{\"model_type\":\"%s\"%s}", cases[i].model, cases[i].more);
        write_file(text, (size_t)n);
        const bool ok = config_read_roles(&roles, path, cases[i].V, &error);
        if (ok) config_roles_text(written, &roles);
        check(ok ? cases[i].written && strcmp(written, cases[i].written) == 0
                 : !cases[i].written && strstr(error.text, path),
              "the ends of a text in %s of %d tokens: %s", text, cases[i].V, ok ? "read" : error.text + strlen(path));
    }
}

// Appended to a small Llama, to a small GPT-2, and whole files: other mathematics, or none.
static void test_refused(void) {
    static const char* const starts[] = {
        small_text, "{\"model_type\":\"gpt2\",\"n_layer\":1,\"n_embd\":4,\"n_head\":2,\"vocab_size\":5", ""};
    static const struct {
        int start;
        const char* more;
    } cases[] = {
        {0, ",\"hidden_act\":\"gelu\"}"},
        {0, ",\"hidden_act\":\"sil\"}"},
        {0, ",\"attention_bias\":true}"},
        {0, ",\"mlp_bias\":true}"},
        {0, ",\"head_dim\":8}"},
        {0, ",\"sliding_window\":4096}"},
        {0, ",\"partial_rotary_factor\":0.5}"},
        {0, ",\"quantization_config\":{\"bits\":4}}"},
        {0, ",\"rope_scaling\":{\"rope_type\":\"yarn\",\"factor\":2.0}}"},
        {0, ",\"rope_scaling\":{\"type\":\"dynamic\",\"factor\":2.0}}"},
        {0, ",\"rope_scaling\":{\"rope_type\":\"linear\"}}"},
        {0, ",\"rope_scaling\":{\"rope_type\":\"linear\",\"factor\":0}}"},
        {0, ",\"rope_scaling\":{\"rope_type\":\"llama3\",\"factor\":8.0}}"},
        {0, ",\"rope_scaling\":{\"rope_type\":\"llama3\",\"factor\":8.0,\"low_freq_factor\":4.0,\"high_freq_factor\":4."
            "0,\"original_max_position_embeddings\":64}}"},
        {0, ",\"rope_scaling\":2}"},
        {0, ",\"num_key_value_heads\":3}"},
        {0, ",\"num_key_value_heads\":0}"},
        {0, ",\"rms_norm_eps\":-1e-5}"},
        {0, ",\"tie_word_embeddings\":1}"},
        {0, ",\"max_position_embeddings\":99999999999}"},
        {1, ",\"activation_function\":\"gelu\"}"},
        {1, ",\"activation_function\":\"gelu_new gelu_fast\"}"},
        {1, ",\"activation_function\":\"\"}"},
        {1, ",\"scale_attn_weights\":false}"},
        {1, ",\"scale_attn_by_inverse_layer_idx\":true}"},
        {1, ",\"add_cross_attention\":true}"},
        {1, ",\"n_inner\":0}"},
        {2, "{\"model_type\":\"mistral\",\"vocab_size\":3}"},
        {2, "{\"architectures\":[\"Qwen2ForCausalLM\"],\"vocab_size\":3}"},
        {2, "{\"vocab_size\":3}"},
        {2, "{\"model_type\":7}"},
        {2, "{\"model_type\":\"gpt2\"}"},
        {2, "{\"model_type\":\"gpt2\",\"vocab_size\":3,\"n_layer\":0}"},
        {2, "{\"model_type\":\"gpt2\",\"vocab_size\":3,\"n_layer\":1,\"n_embd\":5,\"n_head\":2}"},
        {2, "[]"},
        {2, "{\"model_type\""},
    };
    ModelConfig m;
    Error error;
    char text[4096];
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        snprintf(text, sizeof text, "%s%s", starts[cases[i].start], cases[i].more);
        const bool refused = !read_text(&m, text, &error);
        check(refused && strstr(error.text, path), "refused: %s", refused ? error.text : cases[i].more);
    }
    snprintf(text, sizeof text, "%s}", starts[1]);
    check(read_text(&m, text, &error), "and the small gpt2 itself is not");
}

// ----------------------------------------------------------------------------------------------------------------
// Scaled frequencies: those of transformers 4.46 (modeling_rope_utils.py), which computes in float32: some roundings.

static void test_rope_scaling(void) {
    static const int place[12] = {0, 1, 9, 12, 13, 14, 15, 16, 17, 18, 20, 31};
    static const struct {
        const char* name;
        double theta;
        RopeScaling scaling;
        double expected[12];
    } cases[] = {
        {"llama3 (Llama 3.2)",
         5e5,
         {32, 1, 4, 8192},
         {1.0, 0.663601279, 0.0249554086, 0.00729266508, 0.00483942125, 0.00321144611, 0.00129054801, 0.000429556705,
          9.70828623e-05, 1.94616387e-05, 8.57025589e-06, 9.41830649e-08}},
        {"linear",
         1e4,
         {2.5, 0, 0, 0},
         {0.400000006, 0.299957693, 0.0299957655, 0.0126491114, 0.00948549435, 0.00711311772, 0.00533408578,
          0.00399999972, 0.00299957697, 0.00224936521, 0.00126491114, 5.33408602e-05}},
    };
    enum { T = 2, HS = 64 };
    float table[T * HS];
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        double worst = 0, at_one = 0;
        rope_table_fill(table, T, HS, cases[i].theta, &cases[i].scaling);
        for (int k = 0; k < 12; k++) {
            const double f = rope_scaled(pow(cases[i].theta, -2.0 * place[k] / HS), &cases[i].scaling);
            worst = fmax(worst, fabs(f / cases[i].expected[k] - 1));
            at_one = fmax(at_one, fabs((double)table[HS + HS / 2 + place[k]] - sin(cases[i].expected[k])));
        }
        check_error(cases[i].name, worst, 16 * 0x1p-24);
        check_error("sines of position 1", at_one, 16 * 0x1p-24);
    }
}

// ---- llm.c's files ----------------------------------------------------------------------------------------------

enum { L = 2, C = 6, NH = 3, V = 5, POSITIONS = 4, PADDED = 8 };

typedef struct {
    unsigned char data[16384];
    size_t size;
} Bytes;

// A number that says where it belongs, and is exact in bf16: kind, layer, row and column, modulo 251.
static float element(int kind, int layer, int row, int col) {
    return (float)((kind * 31 + layer * 17 + row * 7 + col * 3) % 251 - 125) / 64;
}

// A file as llm.c's train_gpt2.py writes it.
static void make_file(Bytes* b, int version) {
    static const struct {
        bool layers;
        int rows, cols, padded;
    } kinds[16] = {{false, V, C, PADDED}, {false, POSITIONS, C, 0}, {true, C, 1, 0},     {true, C, 1, 0},
                   {true, 3 * C, C, 0},   {true, 3 * C, 1, 0},      {true, C, C, 0},     {true, C, 1, 0},
                   {true, C, 1, 0},       {true, C, 1, 0},          {true, 4 * C, C, 0}, {true, 4 * C, 1, 0},
                   {true, C, 4 * C, 0},   {true, C, 1, 0},          {false, C, 1, 0},    {false, C, 1, 0}};
    const int32_t header[8] = {20240326, version, POSITIONS, V, L, NH, C, PADDED};
    memset(b, 0, sizeof *b);
    memcpy(b->data, header, sizeof header);
    b->size = 1024;
    for (int k = 0; k < 16; k++)
        for (int layer = 0; layer < (kinds[k].layers ? L : 1); layer++)
            for (int row = 0; row < (kinds[k].padded ? kinds[k].padded : kinds[k].rows); row++)
                for (int col = 0; col < kinds[k].cols; col++) {
                    const float x = row < kinds[k].rows ? element(k, layer, row, col) : NAN; // padding is not looked at
                    const uint32_t bits = bits_of_float(x);
                    const uint16_t half = (uint16_t)(bits >> 16);
                    if (version == 3) {
                        memcpy(b->data + b->size, &bits, 4);
                        b->size += 4;
                    } else {
                        memcpy(b->data + b->size, &half, 2);
                        b->size += 2;
                    }
                }
}

// What a rank has read, compared with what make_file has written.
static bool right_slices(const ModelConfig* m, const Layout* layout, const float* params) {
    static const int kinds[] = {WTE,     WPE,     NORM1_W, NORM1_B, QKV_W,      QKV_B,      ATTN_PROJ_W,  ATTN_PROJ_B,
                                NORM2_W, NORM2_B, FC_W,    FC_B,    MLP_PROJ_W, MLP_PROJ_B, FINAL_NORM_W, FINAL_NORM_B};
    bool right = m->L == L && m->C == C && m->NH == NH && m->NKV == NH && m->V == V && m->T == POSITIONS && m->tied &&
                 m->F == 4 * C && m->hub == HUB_GPT2 && m->eps == 1e-5;
    for (int i = 0; i < layout->n; i++) {
        const Slice* s = &layout->slices[i];
        int k = 0;
        while (kinds[k] != (int)s->tensor.kind) k++;
        for (int64_t row = 0; row < s->rows_used; row++)
            for (int64_t col = 0; col < s->cols; col++)
                right = right && params[s->offset + row * s->cols + col] ==
                                     element(k, s->tensor.layer < 0 || s->tensor.layer >= L ? 0 : s->tensor.layer,
                                             (int)slice_logical_row(s, row), (int)(slice_logical_col(s) + col));
    }
    return right;
}

static void test_llmc(void) {
    Bytes b;
    ModelConfig m;
    bool told;
    Error error;
    static const int meshes[][2] = {{1, 1}, {3, 1}, {1, 2}, {3, 2}};
    for (int version = 3; version <= 5; version += 2) {
        make_file(&b, version);
        write_file(b.data, b.size);
        bool ok = checkpoint_model(&m, &told, path, &error) && told;
        for (size_t i = 0; i < sizeof meshes / sizeof meshes[0] && ok; i++) {
            for (int rank = 0; rank < meshes[i][0] * meshes[i][1] && ok; rank++) {
                Layout layout;
                ok = layout_build(&layout, &m, mesh_of_rank(rank, meshes[i][0], meshes[i][1], 1), POSITIONS, &error);
                float* params = (float*)checked_calloc((size_t)layout.elements, sizeof(float), "a test's weights");
                ok = ok && checkpoint_init(path, &m, &layout, params, &error) && right_slices(&m, &layout, params);
                free(params);
                layout_free(&layout);
            }
        }
        check(ok, "llm.c's version %d, whole and in slices", version);
        SafeTensor list[64];
        SafeTensorsLayout plan;
        ok = llmc_file_layout(&plan, list, &m, version == 3 ? SAFE_F32 : SAFE_BF16, &error);
        const size_t width = version == 3 ? 4 : 2, more = (128 - PADDED) * C * width;
        int32_t ours[8], theirs[8];
        if (ok) memcpy(ours, plan.header, sizeof ours), memcpy(theirs, b.data, sizeof theirs);
        theirs[7] = 128;
        check(ok && plan.header_bytes == 1024 && plan.file_bytes == (int64_t)(b.size + more) &&
                  memcmp(ours, theirs, sizeof ours) == 0,
              "the plan of such a file has its header and its size, padded to 128");
        if (ok) safetensors_layout_free(&plan);
    }
    ModelConfig other[4] = {m, m, m, m}; // which the format cannot hold
    SafeTensorsLayout plan;
    other[0].tied = false;
    other[1].F = 3 * C;
    other[2].eps = 1e-6;
    model_set_arch(&other[3], ARCH_LLAMA);
    for (int i = 0; i < 4; i++)
        check(!llmc_file_layout(&plan, NULL, &other[i], SAFE_F32, &error), "not written: %s", error.text);
}

// Opens the bytes as --init does. A file that is opened has to be one, to the byte.
static bool opens(const Bytes* b, Error* error) {
    SafeTensorsModel model;
    ModelConfig m;
    memset(error, 0, sizeof *error);
    write_file(b->data, b->size);
    if (!llmc_open(&model, &m, path, error)) return false;
    bool inside = true;
    float x;
    for (int64_t i = 0; i < model.tensors; i++) {
        const SafeTensor* t = model.entries[i].tensor;
        inside = inside && t->offset >= 1024 && t->offset + t->bytes <= (int64_t)b->size &&
                 safetensors_read_f32(&x, model.files, t, t->elements - 1, 1, error);
    }
    safetensors_model_close(&model);
    if (!inside) die("a tensor lies outside of its file");
    return true;
}

static void test_llmc_damaged(bool brief) {
    static const struct {
        int word;
        int32_t value;
    } cases[] = {{0, 20240327}, {1, 1},       {1, 4},     {2, 0}, {2, -4},      {2, 5}, {3, 0},          {3, 9},
                 {4, 1},        {4, 1 << 30}, {4, 10000}, {5, 4}, {6, 1 << 30}, {6, 7}, {7, 2147483647}, {7, 1 << 30}};
    Bytes whole, b;
    Error error;
    make_file(&whole, 3);
    check(opens(&whole, &error), "a whole file is opened");
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        b = whole;
        memcpy(b.data + 4 * cases[i].word, &cases[i].value, 4);
        const bool refused = !opens(&b, &error);
        check(refused && (cases[i].word != 1 || strstr(error.text, "version")), "refused: word %d = %d: %s",
              cases[i].word, cases[i].value, error.text);
    }
    int opened = 0;
    for (size_t size = 0; size < whole.size; size += size < 1100 ? 13 : 601) {
        b = whole;
        b.size = size;
        opened += opens(&b, &error) || !error.text[0];
    }
    b = whole;
    b.size += 1;
    opened += opens(&b, &error);
    check(opened == 0, "what is cut off or too long is refused, with a reason");
    const int rounds = brief ? 300 : 3000;
    int untold = 0;
    opened = 0;
    for (int i = 0; i < rounds; i++) { // small and large numbers in any of the eight words, and bits that change
        b = whole;
        for (int k = 0; k < 1 + i % 3; k++) {
            const int word = (int)(random_uniform(1, 1, (uint64_t)(8 * i + k)) * 8);
            const double u = random_uniform(2, 1, (uint64_t)(8 * i + k));
            int32_t value;
            memcpy(&value, b.data + 4 * word, 4);
            if (i % 4 == 0) value ^= (int32_t)(1u << (int)(u * 32));
            if (i % 4 == 1) value += (int)(u * 5) - 2;
            if (i % 4 == 2) value = (int32_t)(u * 4294967295.0 - 2147483648.0);
            if (i % 4 == 3) value = (int32_t)exp(u * 21);
            memcpy(b.data + 4 * word, &value, 4);
        }
        const bool is = opens(&b, &error);
        opened += is;
        untold += !is && !strstr(error.text, path);
    }
    check(untold == 0 && opened < rounds / 2,
          "%d headers with other numbers: %d opened, the others refused with a reason", rounds, opened);
}

int main(int argc, char** argv) {
    process.name = "test_pretrained";
    const bool brief = argc > 1 && strcmp(argv[1], "--short") == 0;
    make_temporary(path, sizeof path, "pretrained");
    test_published();
    test_roles();
    test_refused();
    test_rope_scaling();
    test_llmc();
    test_llmc_damaged(brief);
    unlink(path);
    return test_end();
}
