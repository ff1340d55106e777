/*
test_pretrained.c: what models say of themselves: checkpoint/hf_config.h against configurations as they are published,
and against what must not be taken for a model of ours; scaled rotary positions against the numbers of transformers.
(Weights on meshes, in and out: test_pretrained.py. Logits beside transformers: check_transformers.py.)
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
static const char small_gpt2_text[] =
    "{\"model_type\":\"gpt2\",\"n_layer\":1,\"n_embd\":4,\"n_head\":2,\"vocab_size\":5";
static const char small_text[] = "{\"model_type\": \"llama\", \"num_hidden_layers\": 2, \"hidden_size\": 8,"
                                 "\"num_attention_heads\": 2, \"intermediate_size\": 12, \"vocab_size\": 5";

static void test_published(void) {
    ModelConfig m, again;
    Error error;
    char text[4 * CONFIG_TEXT];
    const ModelConfig gpt2 = *model_find_preset("gpt2-124M");
    ModelConfig smollm = model_of(ARCH_LLAMA, 30, 576, 9, 3, 1536, 8192, 49152);
    smollm.tied = true;
    smollm.rope_theta = 1e5;
    ModelConfig llama3 = model_of(ARCH_LLAMA, 16, 2048, 32, 8, 8192, 131072, 128256);
    llama3.tied = true;
    llama3.rope_theta = 5e5;
    llama3.rope_scaling.factor = 32;
    llama3.rope_scaling.low = 1;
    llama3.rope_scaling.high = 4;
    llama3.rope_scaling.original = 8192;
    ModelConfig plain = model_of(ARCH_LLAMA, 2, 8, 2, 2, 12, 2048, 5);
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
        {"both in rope_parameters", small_text, ",\"rope_parameters\":{\"rope_type\":\"default\",\"rope_theta\":777}}",
         &theta},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        snprintf(text, sizeof text, "%s%s", cases[i].text, cases[i].more);
        bool ok = read_text(&m, text, &error);
        check(ok && model_same(&m, cases[i].expected), "config.json of %s%s%s", cases[i].name, ok ? "" : ": ",
              ok ? "" : error.text);
        config_write(text, &m, "");
        ok = ok && read_text(&again, text, &error) && model_same(&again, &m);
        check(ok, "config.json of %s, written and read again", cases[i].name);
    }
    config_write(text, &wide, ",\n  \"sync\": 1");
    check(read_text(&m, text, &error) && model_same(&m, &wide) && strcmp(m.name, "custom") == 0,
          "an untied gpt2 with an mlp and an eps of its own");
    check(read_text(&m, "{\"model_type\":\"gpt2\",\"n_layer\":1,\"n_embd\":2,\"n_head\":1,\"vocab_size\":3}", &error) &&
              m.hub == HUB_GPT2 && m.F == 8 && m.T == 1024 && m.tied,
          "the least that a gpt2 has to say");
}

// Which tokens begin and end a text, as they are read and written again; NULL: refused.
static void test_ends(void) {
    static const struct {
        const char *more, *written;
    } cases[] = {
        {"", ""},
        {",\"eos_token_id\":null", ",\n  \"eos_token_id\": null"},
        {",\"bos_token_id\":128000,\"eos_token_id\":[128001,128008],\"pad_token_id\":-1",
         ",\n  \"bos_token_id\": 128000,\n  \"eos_token_id\": [128001, 128008],\n  \"pad_token_id\": -1"},
        {",\"eos_token_id\":[]", ",\n  \"eos_token_id\": []"},
        {",\"eos_token_id\":\"</s>\"", NULL},
        {",\"eos_token_id\":[1,[2]]", NULL},
        {",\"bos_token_id\":1.5", NULL},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        char text[512], written[CONFIG_ENDS_TEXT] = "";
        Error error;
        const int n = snprintf(text, sizeof text, "{\"model_type\":\"llama\"%s}", cases[i].more);
        write_file(text, (size_t)n);
        const bool ok = config_read_ends(written, path, &error);
        check(ok ? cases[i].written && strcmp(written, cases[i].written) == 0
                 : !cases[i].written && strstr(error.text, path),
              "the ends of a text in %s: %s", text, ok ? "read" : error.text + strlen(path));
    }
}

// Added to a small Llama and to a small GPT-2, and whole files: other mathematics, or none; separated by |.
static const char* const refused[3][2] = {
    {small_text,
     "\"hidden_act\":\"gelu\"|\"hidden_act\":\"sil\"|\"attention_bias\":true|\"mlp_bias\":true|\"head_dim\":8|"
     "\"sliding_window\":4096|\"partial_rotary_factor\":0.5|\"quantization_config\":{\"bits\":4}|"
     "\"rope_scaling\":{\"rope_type\":\"yarn\",\"factor\":2.0}|\"rope_scaling\":{\"type\":\"dynamic\",\"factor\":2.0}|"
     "\"rope_scaling\":{\"type\":\"linear\",\"factor\":2.5}|"
     "\"rope_scaling\":{\"rope_type\":\"llama3\",\"factor\":8.0}|"
     "\"rope_scaling\":{\"rope_type\":\"llama3\",\"factor\":8.0,\"low_freq_factor\":4.0,\"high_freq_factor\":4.0,"
     "\"original_max_position_embeddings\":64}|\"rope_scaling\":2|\"num_key_value_heads\":3|\"num_key_value_heads\":0|"
     "\"rms_norm_eps\":-1e-5|\"tie_word_embeddings\":1|\"max_position_embeddings\":99999999999"},
    {small_gpt2_text,
     "\"activation_function\":\"gelu\"|\"activation_function\":\"gelu_new gelu_fast\"|\"activation_function\":\"\"|"
     "\"scale_attn_weights\":false|\"scale_attn_by_inverse_layer_idx\":true|\"add_cross_attention\":true|"
     "\"n_inner\":0"},
    {"", "{\"model_type\":\"mistral\",\"vocab_size\":3,\"num_hidden_layers\":1,\"hidden_size\":4,"
         "\"num_attention_heads\":1,\"intermediate_size\":4,\"max_position_embeddings\":4,\"rms_norm_eps\":1e-5}|"
         "{\"architectures\":[\"GPT2LMHeadModel\"],\"vocab_size\":3}|{\"vocab_size\":3}|{\"model_type\":7}|"
         "{\"model_type\":\"gpt2\"}|{\"model_type\":\"gpt2\",\"vocab_size\":3,\"n_layer\":0}|"
         "{\"model_type\":\"gpt2\",\"vocab_size\":3,\"n_layer\":1,\"n_embd\":5,\"n_head\":2}|[]|{\"model_type\""}};

static void test_refused(void) {
    ModelConfig m;
    Error error;
    char text[4096];
    for (int start = 0; start < 3; start++) {
        for (const char* at = refused[start][1]; at; at = strchr(at, '|') ? strchr(at, '|') + 1 : NULL) {
            snprintf(text, sizeof text, start < 2 ? "%s,%.*s}" : "%s%.*s", refused[start][0], (int)strcspn(at, "|"),
                     at);
            const bool taken = read_text(&m, text, &error);
            check(!taken && strstr(error.text, path), "refused: %s", taken ? text : error.text);
        }
    }
    snprintf(text, sizeof text, "%s}", small_gpt2_text);
    check(read_text(&m, text, &error), "and the small gpt2 itself is not");
}

// ----------------------------------------------------------------------------------------------------------------
// Scaled frequencies: those of transformers 4.46 (modeling_rope_utils.py), which computes in float32: some roundings.

static void test_rope_scaling(void) {
    static const RopeScaling of_llama3 = {32, 1, 4, 8192}; // Llama 3.2
    static const int place[12] = {0, 1, 9, 12, 13, 14, 15, 16, 17, 18, 20, 31};
    static const double expected[12] = {
        1.0,           0.663601279,    0.0249554086,   0.00729266508,  0.00483942125,  0.00321144611,
        0.00129054801, 0.000429556705, 9.70828623e-05, 1.94616387e-05, 8.57025589e-06, 9.41830649e-08};
    enum { T = 2, HS = 64 };
    float table[T * HS];
    double worst = 0, at_one = 0;
    rope_table_fill(table, T, HS, 5e5, &of_llama3);
    for (int k = 0; k < 12; k++) {
        const double f = rope_scaled(pow(5e5, -2.0 * place[k] / HS), &of_llama3);
        worst = fmax(worst, fabs(f / expected[k] - 1));
        at_one = fmax(at_one, fabs((double)table[HS + HS / 2 + place[k]] - sin(expected[k])));
    }
    check_error("scaled frequencies", worst, 16 * 0x1p-24);
    check_error("sines of position 1", at_one, 16 * 0x1p-24);
}

int main(void) {
    process.name = "test_pretrained";
    make_temporary(path, sizeof path, "pretrained");
    test_published();
    test_ends();
    test_refused();
    test_rope_scaling();
    unlink(path);
    return test_end();
}
