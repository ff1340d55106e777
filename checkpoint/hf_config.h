/*
checkpoint/hf_config.h: reads and writes Hugging Face's config.json: the model's shape, and which tokens begin and end a
text.

    config_read         the model that a config.json describes; anything that is not computed here is refused by name
    config_read_ends    which tokens begin and end a text, to be written again
    config_write        config.json of a model

Theory. The members, and in brackets the value that transformers takes where a member is missing or null:

    GPT-2 (GPT2LMHeadModel)             Llama (LlamaForCausalLM: also Llama 3.x, TinyLlama, SmolLM)
    n_layer                             num_hidden_layers
    n_embd                              hidden_size
    n_head                              num_attention_heads, num_key_value_heads [the same]
    n_inner [4 n_embd]                  intermediate_size
    n_positions [1024]                  max_position_embeddings [2048]
    vocab_size                          vocab_size
    layer_norm_epsilon [1e-5]           rms_norm_eps [1e-6]
    activation_function [gelu_new]      hidden_act [silu]
    tie_word_embeddings [true]          tie_word_embeddings [false]
                                        rope_theta [10000], rope_scaling, or both in rope_parameters

A file may describe mathematics that the trainer does not compute: biases in a Llama, another activation function, other
rotary positions, quantized weights. Such weights would load, and the model would be wrong. So every member that
transformers knows for these two architectures is read, and an unsupported value is refused by name. Dropout and initial
values do not change what a trained model computes.
*/
#pragma once

#include "../util/json.h"
#include "../model.h"

// The members of an object; null counts as missing.
typedef struct {
    const Json* json;
    const JsonNode* object;
    Error* error;
} ConfigReader;

static inline const JsonNode* config_get(const ConfigReader* reader, const char* key) {
    const JsonNode* node = json_get(reader->object, key);
    return node && node->type != JSON_NULL ? node : NULL;
}

// Reads an integer from 1 to `most`. usual: its value if it is missing; 0: it must not be missing.
static inline bool config_int(int* out, const ConfigReader* reader, const char* key, int64_t most, int usual) {
    int64_t value = usual;
    if ((config_get(reader, key) || usual == 0) &&
        !json_get_integer(&value, reader->json, reader->object, key, 1, most, reader->error))
        return false;
    *out = (int)value;
    return true;
}

// Reads a finite number above 0.
static inline bool config_number(double* out, const ConfigReader* reader, const char* key, double usual) {
    const JsonNode* node = config_get(reader, key);
    *out = usual;
    if (!node && usual > 0) return true;
    if (!json_get_number(out, reader->json, reader->object, key, reader->error)) return false;
    return *out > 0 || json_fail(reader->json, node, reader->error, "\"%s\" is %g; it has to be above 0", key, *out);
}

static inline bool config_bool(bool* out, const ConfigReader* reader, const char* key, bool usual) {
    *out = usual;
    return !config_get(reader, key) || json_get_bool(out, reader->json, reader->object, key, reader->error);
}

// A switch that changes what the model computes must have the value that is computed here.
static inline bool config_switch(const ConfigReader* reader, const char* key, bool ours) {
    bool value;
    if (!config_bool(&value, reader, key, ours)) return false;
    return value == ours ||
           json_fail(reader->json, config_get(reader, key), reader->error,
                     "\"%s\" is %s: that is another model than the one here", key, value ? "true" : "false");
}

// The activation function must be the architecture's, by one of the names that its word has.
static inline bool config_check_activation(const ModelConfig* model, const ConfigReader* reader, const char* key) {
    const char *value = "", *ours = activation_kinds[model->activation].hub_names;
    char word[128];
    if (!config_get(reader, key)) return true;
    if (!json_get_string(&value, reader->json, reader->object, key, reader->error)) return false;
    snprintf(word, sizeof word, " %s ", value);
    return strstr(ours, word) ||
           json_fail(reader->json, config_get(reader, key), reader->error,
                     "\"%s\" is %s, which is not supported; there is%s", key, json_quoted(value).text, ours);
}

// A member that must be missing, because its feature is not computed here.
static inline bool config_absent(const ConfigReader* reader, const char* key) {
    const JsonNode* node = config_get(reader, key);
    return !node || json_fail(reader->json, node, reader->error, "\"%s\" is not supported", key);
}

// Reads "rope_scaling", or the members beside "rope_theta" in "rope_parameters".
static inline bool config_rope_scaling(RopeScaling* scaling, const ConfigReader* reader) {
    const char *key = config_get(reader, "rope_type") ? "rope_type" : "type", *kind = "default";
    memset(scaling, 0, sizeof *scaling);
    if (config_get(reader, key) && !json_get_string(&kind, reader->json, reader->object, key, reader->error))
        return false;
    if (strcmp(kind, "default") == 0) return true;
    if (strcmp(kind, "llama3") != 0)
        return json_fail(reader->json, config_get(reader, key), reader->error,
                         "rotary positions of type %s are not supported; there is default and llama3",
                         json_quoted(kind).text);
    int original;
    if (!config_number(&scaling->factor, reader, "factor", 0) ||
        !config_number(&scaling->low, reader, "low_freq_factor", 0) ||
        !config_number(&scaling->high, reader, "high_freq_factor", 0) ||
        !config_int(&original, reader, "original_max_position_embeddings", 1 << 24, 0))
        return false;
    scaling->original = original;
    return scaling->low < scaling->high ||
           json_fail(reader->json, reader->object, reader->error,
                     "\"low_freq_factor\" %g is not below \"high_freq_factor\" %g", scaling->low, scaling->high);
}

static inline bool config_read_rope(ModelConfig* model, const ConfigReader* reader) {
    const JsonNode *both = config_get(reader, "rope_parameters"), *old = config_get(reader, "rope_scaling");
    const ConfigReader inner = {reader->json, both ? both : old, reader->error};
    if (inner.object && inner.object->type != JSON_OBJECT)
        return json_fail(reader->json, inner.object, reader->error, "\"%s\" has to be an object", inner.object->name);
    return config_number(&model->rope_theta, both ? &inner : reader, "rope_theta", 10000) &&
           (!inner.object || config_rope_scaling(&model->rope_scaling, &inner));
}

static inline bool config_read_gpt2(ModelConfig* model, const ConfigReader* reader) {
    return config_check_activation(model, reader, "activation_function") &&
           config_int(&model->L, reader, "n_layer", 10000, 0) && config_int(&model->C, reader, "n_embd", 1 << 20, 0) &&
           config_int(&model->NH, reader, "n_head", 1 << 16, 0) &&
           config_int(&model->NKV, reader, "n_head", 1 << 16, 0) &&
           config_int(&model->F, reader, "n_inner", 1 << 22, 4 * model->C) &&
           config_int(&model->T, reader, "n_positions", 1 << 24, 1024) &&
           config_number(&model->eps, reader, "layer_norm_epsilon", 1e-5) &&
           config_bool(&model->tied, reader, "tie_word_embeddings", true) &&
           config_switch(reader, "scale_attn_weights", true) &&
           config_switch(reader, "scale_attn_by_inverse_layer_idx", false) &&
           config_switch(reader, "add_cross_attention", false);
}

static inline bool config_read_llama(ModelConfig* model, const ConfigReader* reader) {
    if (!config_check_activation(model, reader, "hidden_act") ||
        !config_int(&model->L, reader, "num_hidden_layers", 10000, 0) ||
        !config_int(&model->C, reader, "hidden_size", 1 << 20, 0) ||
        !config_int(&model->NH, reader, "num_attention_heads", 1 << 16, 0) ||
        !config_int(&model->NKV, reader, "num_key_value_heads", 1 << 16, model->NH) ||
        !config_int(&model->F, reader, "intermediate_size", 1 << 22, 0) ||
        !config_int(&model->T, reader, "max_position_embeddings", 1 << 24, 2048) ||
        !config_number(&model->eps, reader, "rms_norm_eps", 1e-6) ||
        !config_bool(&model->tied, reader, "tie_word_embeddings", false) ||
        !config_switch(reader, "attention_bias", false) || !config_switch(reader, "mlp_bias", false) ||
        !config_absent(reader, "sliding_window") || !config_read_rope(model, reader))
        return false;
    int HS;
    if (!config_absent(reader, "partial_rotary_factor") || !config_int(&HS, reader, "head_dim", 1 << 20, 1))
        return false;
    return !config_get(reader, "head_dim") || HS * (int64_t)model->NH == model->C ||
           json_fail(reader->json, config_get(reader, "head_dim"), reader->error,
                     "\"head_dim\" is %d: here it is hidden_size / num_attention_heads = %d / %d", HS, model->C,
                     model->NH);
}

// Reads the shape that a config.json describes; refuses unsupported values, by name and place.
static inline bool config_read(ModelConfig* model, const char* path, Error* error) {
    Json json;
    const char* kind = "";
    memset(model, 0, sizeof *model);
    if (!json_open(&json, path, error)) return false;
    const ConfigReader reader = {&json, json.nodes, error};
    bool ok = json.nodes->type == JSON_OBJECT || json_fail(&json, json.nodes, error, "not an object");
    ok = ok && json_get_string(&kind, &json, json.nodes, "model_type", error);
    int arch = 0;
    while (ok && arch < ARCHS && strcmp(architectures[arch].model_type, kind) != 0) arch++;
    if (arch == ARCHS)
        ok = json_fail(&json, json.nodes, error, "a model of type %s, which is not supported", json_quoted(kind).text);
    if (ok) model_set_arch(model, (Arch)arch);
    ok = ok && config_absent(&reader, "quantization_config") &&
         config_int(&model->V, &reader, "vocab_size", 1 << 30, 0) &&
         (model->hub == HUB_GPT2 ? config_read_gpt2(model, &reader) : config_read_llama(model, &reader));
    Error why;
    if (ok && !model_check(model, &why)) ok = fail(error, "%s: %.512s", path, why.text);
    model->name = "custom";
    json_free(&json);
    return ok;
}

// ---- The ends of texts ------------------------------------------------------------------------------------------

enum { CONFIG_ENDS_TEXT = 1024 };

// Appends a member whose value is a token, a list of tokens, or null. False: it is something else, or too long.
static inline bool config_append_tokens(char text[CONFIG_ENDS_TEXT], const JsonNode* node) {
    const bool list = node->type == JSON_ARRAY;
    const char* between = list ? "[" : "";
    append_text(text, CONFIG_ENDS_TEXT, ",\n  \"%s\": %s", node->name, node->type == JSON_NULL ? "null" : between);
    if (node->type == JSON_NULL) return true;
    between = "";
    for (const JsonNode* one = list ? json_first(node) : node; one; one = list ? json_next(one) : NULL) {
        if (one->type != JSON_INTEGER || strlen(text) > CONFIG_ENDS_TEXT - 128) return false;
        append_text(text, CONFIG_ENDS_TEXT, "%s%lld", between, (long long)one->value.integer);
        between = ", ";
    }
    if (list) append_text(text, CONFIG_ENDS_TEXT, "]");
    return true;
}

// Reads which tokens begin and end a text and pad a batch, as members for config_write. What is missing stays so.
static inline bool config_read_ends(char text[CONFIG_ENDS_TEXT], const char* path, Error* error) {
    static const char* const names[] = {"bos_token_id", "eos_token_id", "pad_token_id"};
    Json json;
    bool ok = json_open(&json, path, error);
    text[0] = 0;
    if (!ok) return false;
    for (int i = 0; i < 3 && ok; i++) {
        const JsonNode* node = json_get(json.nodes, names[i]);
        if (node && !config_append_tokens(text, node))
            ok = json_fail(&json, node, error, "\"%s\" has to be the number of a token, or a list of such", names[i]);
    }
    json_free(&json);
    return ok;
}

// ---- Writing ----------------------------------------------------------------------------------------------------

// The shortest decimal that reads back as the same double, in the form of a Python float, which transformers requires.
static inline const char* config_decimal(char text[32], double x) {
    snprintf(text, 32, "%.1f", x);
    if (x == floor(x) && x < 1e15) return text;
    for (int digits = 1; digits <= 17; digits++) {
        snprintf(text, 32, "%.*g", digits, x);
        if (strtod(text, NULL) == x) break;
    }
    return text;
}

enum { CONFIG_TEXT = 4096 };

// Writes config.json of a model. more: further members, each after a comma.
static inline void config_write(char text[CONFIG_TEXT], const ModelConfig* m, const char* more) {
    const RopeScaling* r = &m->rope_scaling;
    const char *type = architectures[m->arch].model_type, *activation = activation_kinds[m->activation].hub_names;
    const int letters = (int)strcspn(++activation, " ");
    char scaling[320] = "", a[32], b[32], c[32];
    if (r->factor > 0)
        snprintf(scaling, sizeof scaling,
                 "  \"rope_scaling\": {\"rope_type\": \"llama3\", \"factor\": %s, \"low_freq_factor\": %s, "
                 "\"high_freq_factor\": %s, \"original_max_position_embeddings\": %.0f},\n",
                 config_decimal(a, r->factor), config_decimal(b, r->low), config_decimal(c, r->high), r->original);
    config_decimal(a, m->eps), config_decimal(b, m->rope_theta);
    if (m->hub == HUB_GPT2)
        snprintf(text, CONFIG_TEXT,
                 "{\n  \"architectures\": [\"GPT2LMHeadModel\"],\n  \"model_type\": \"%s\",\n  \"n_layer\": %d,\n"
                 "  \"n_embd\": %d,\n  \"n_head\": %d,\n  \"n_inner\": %d,\n  \"n_positions\": %d,\n"
                 "  \"vocab_size\": %d,\n  \"activation_function\": \"%.*s\",\n  \"layer_norm_epsilon\": %s,\n"
                 "  \"tie_word_embeddings\": %s,\n  \"torch_dtype\": \"float32\"%s\n}\n",
                 type, m->L, m->C, m->NH, m->F, m->T, m->V, letters, activation, a, m->tied ? "true" : "false", more);
    else
        snprintf(text, CONFIG_TEXT,
                 "{\n  \"architectures\": [\"LlamaForCausalLM\"],\n  \"model_type\": \"%s\",\n"
                 "  \"num_hidden_layers\": %d,\n  \"hidden_size\": %d,\n  \"num_attention_heads\": %d,\n"
                 "  \"num_key_value_heads\": %d,\n  \"intermediate_size\": %d,\n  \"max_position_embeddings\": %d,\n"
                 "  \"vocab_size\": %d,\n  \"hidden_act\": \"%.*s\",\n  \"rms_norm_eps\": %s,\n  \"rope_theta\": %s,\n"
                 "%s  \"tie_word_embeddings\": %s,\n  \"torch_dtype\": \"float32\"%s\n}\n",
                 type, m->L, m->C, m->NH, m->NKV, m->F, m->T, m->V, letters, activation, a, b, scaling,
                 m->tied ? "true" : "false", more);
}
