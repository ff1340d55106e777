/*
trainer/open_data.h: what a run reads, opened before it begins, and checked to be the same on all ranks: texts, their
vocabulary, the model, loaders, evaluations.

An error ends the run here, on all ranks, with one line.
*/
#pragma once

#include "../checkpoint/pretrained.h"
#include "../comm/check_same.h"
#include "../dataloader/text.h"
#include "trainer.h"

// Warns of the first file whose text is probably not meant.
static inline void warn_of_texts(const Trainer* t, const TokenFiles* files) {
    const char* what = NULL;
    for (int i = 0; i < files->files && !what && files->format == TOKENS_TEXT && is_main(t); i++) {
        const TokenFile* file = &files->file[i];
        what = suspicious_text(file->map.data, file->map.size);
        if (what) print_message("warning: %s is %s: read as text", file->path, what);
    }
}

// Appends the files that match a pattern to the list and returns their size in bytes; no match is no error.
static inline int64_t add_files(PathList* list, const char* pattern) {
    int64_t bytes = 0;
    glob_t found;
    if (glob(pattern, 0, NULL, &found) == 0) {
        for (size_t i = 0; i < found.gl_pathc; i++) {
            struct stat st;
            if (stat(found.gl_pathv[i], &st) != 0 || !S_ISREG(st.st_mode)) continue;
            path_list_append(list, found.gl_pathv[i]);
            bytes += st.st_size;
        }
    }
    globfree(&found);
    return bytes;
}

// The default text: two megabytes of the system's C headers.
static inline PathList default_data(void) {
    static const char* headers[] = {"/usr/include/*.h", "/usr/include/linux/*.h", "/usr/include/*/bits/*.h", NULL};
    PathList list = {NULL, 0, 0};
    int64_t bytes = 0;
    for (int i = 0; headers[i] && bytes < 2000000; i++) bytes += add_files(&list, headers[i]);
    return list;
}

// Opens the texts to train and to validate on, --data and --val, or the default. All ranks must have the same.
static inline void open_files(Trainer* t) {
    const Settings* o = &t->settings;
    Error error;
    bool ok;
    if (o->data) {
        ok = tokens_open(&t->train_files, o->data, &error);
    } else {
        PathList list = default_data();
        if (!list.count) die_usage("there are no C headers in /usr/include to train on: give --data");
        ok = tokens_open_list(&t->train_files, (const char* const*)list.path, list.count, &error);
        path_list_free(&list);
    }
    if (ok && o->val) ok = tokens_open(&t->val_files, o->val, &error);
    check_all_ranks(t, ok, &error);
    warn_of_texts(t, &t->train_files);
    warn_of_texts(t, &t->val_files);
    char text[256];
    t->data_checksum = tokens_checksum(&t->train_files);
    snprintf(text, sizeof text, "%lld tokens to train on, checksum %016llx; %lld to validate on, checksum %016llx",
             (long long)t->train_files.tokens, (unsigned long long)t->data_checksum, (long long)t->val_files.tokens,
             (unsigned long long)tokens_checksum(&t->val_files));
    comm_check_same(&t->world, "data", text, "give all ranks the same files");
}

// Opens a vocabulary, and remembers its file: checkpoints get a copy. If it cannot be read, an optional one (needed =
// false) is skipped with a message.
static inline void load_tokenizer(Trainer* t, const char* path, bool needed) {
    Error error;
    if (!tokenizer_in_folder(t->vocabulary, sizeof t->vocabulary, path))
        snprintf(t->vocabulary, sizeof t->vocabulary, "%s", path);
    const bool ok = tokenizer_open(&t->tokenizer, path, &error);
    check_all_ranks(t, ok || !needed, &error);
    if (ok) return;
    memset(&t->tokenizer, 0, sizeof t->tokenizer);
    if (is_main(t)) print_message("samples are numbers, not text: %s", error.text);
}

// The folder of --init, or of its file.
static inline void init_folder(char* folder, size_t size, const char* init) {
    struct stat st;
    if (stat(init, &st) == 0 && S_ISDIR(st.st_mode))
        snprintf(folder, size, "%s", init);
    else
        beside(folder, size, init, ".");
}

// Finds the vocabulary that build/tokenize has copied beside the first shard (beside a text it may be anything's), or
// the one beside the weights: in the newest checkpoint, in the folder of --init. False: none.
static inline bool find_vocabulary(const Trainer* t, char* path, size_t size) {
    const Settings* o = &t->settings;
    const TokenFiles* files = &t->train_files;
    char folder[4096];
    if (files->files && files->format != TOKENS_TEXT) {
        beside(folder, sizeof folder, files->file[0].path, ".");
        if (tokenizer_in_folder(path, size, folder)) return true;
    }
    if (o->resume && checkpoint_newest(folder, sizeof folder, o->out) && tokenizer_in_folder(path, size, folder))
        return true;
    if (!o->init) return false;
    init_folder(folder, sizeof folder, o->init);
    return tokenizer_in_folder(path, size, folder);
}

// Tokenizes the texts to train and to validate on with the run's vocabulary.
static inline void encode_texts(Trainer* t) {
    Error error;
    const bool bytes = t->tokenizer.split == SPLIT_BYTES, val = t->val_files.files > 0;
    bool ok = !val || streams_agree(&t->train_files, &t->val_files, bytes, &error);
    ok = ok && text_encode(&t->train_files, &t->tokenizer, &error) &&
         (!val || text_encode(&t->val_files, &t->tokenizer, &error));
    check_all_ranks(t, ok, &error);
}

// Opens the vocabulary that makes tokens of text, and text of tokens: --tokenizer, or the one that is found. If there
// is none, a text is bytes, and tokens stay numbers.
static inline void open_tokenizer(Trainer* t) {
    char path[4096];
    const Settings* o = &t->settings;
    const bool data = t->train_files.files > 0, text = data && format_is_text(t->train_files.format);
    const bool found = !o->tokenizer && find_vocabulary(t, path, sizeof path);
    comm_check_same(&t->world, "the vocabulary's place", found ? path : "none", "give all ranks the same files");
    if (o->tokenizer || found)
        load_tokenizer(t, found ? path : o->tokenizer, o->tokenizer || text || o->generate);
    else if (text)
        tokenizer_bytes(&t->tokenizer);
    comm_check_same(&t->world, "vocabulary", tokenizer_checksum(&t->tokenizer).text,
                    "give all ranks the same --tokenizer");
    if (data) encode_texts(t);
}

// The vocabulary size of the data, or of bytes where there is none; 0: not known.
static inline int vocabulary_size(const Trainer* t) {
    if (t->tokenizer.vocab) return t->tokenizer.vocab;
    if (t->train_files.files) return token_formats[t->train_files.format].vocab;
    return settings_is_training(&t->settings) ? 0 : 256;
}

// Takes bytes as tokens of the prompt where no vocabulary was found.
static inline void fallback_to_bytes(Trainer* t, int V) {
    if (t->tokenizer.vocab || !t->settings.generate) return;
    if (V < 256)
        die_usage("--generate: the model has %d tokens, and there is no vocabulary that says which: give --tokenizer",
                  V);
    if (V > 256 && is_main(t))
        print_message(
            "no vocabulary was found for the model's %d tokens: text is taken as bytes; --tokenizer gives it another",
            V);
    tokenizer_bytes(&t->tokenizer);
}

// Finds the newest checkpoint of a run whose config.json is valid.
static inline bool newest_model(char path[CHECKPOINT_PATH], const char* out) {
    int64_t* steps = NULL;
    Error error;
    const int n = checkpoint_steps(&steps, out);
    bool found = false;
    for (int i = 0; i < n && !found; i++)
        found = checkpoint_path(path, &error, "%s/step_%08lld", out, (long long)steps[i]) &&
                checkpoint_config_is_sound(path);
    free(steps);
    return found;
}

// The model: the one of the checkpoint to resume or of the initial weights (a folder of Hugging
// Face's), else the one of --model and the sizes. data_vocab: the vocabulary of the data; 0: not known.
static inline ModelConfig resolve_model(Trainer* t, Option* table, int n, int data_vocab) {
    const Settings* o = &t->settings;
    char newest[CHECKPOINT_PATH] = "";
    int32_t resumes = is_main(t) && o->resume && newest_model(newest, o->out);
    comm_broadcast(&t->world, &resumes, 1, COMM_INT32, 0);
    comm_broadcast(&t->world, newest, sizeof newest, COMM_BYTE, 0);
    const char* path = resumes ? newest : o->init;
    ModelConfig stored = model_of(ARCH_GPT2, 1, 1, 1, 1, 4, 1, 1);
    bool named = false; // whether the weights name their model
    Error error;
    if (o->init && !resumes) check_all_ranks(t, checkpoint_find_weights(o->init, !o->dry_run, &error), &error);
    check_all_ranks(t, !path || checkpoint_model(&stored, &named, path, &error), &error);
    char text[CONFIG_TEXT] = "no config.json"; // ranks with different models would wait for ever
    if (named) config_write(text, &stored, "");
    if (path) comm_check_same(&t->world, "the model of the weights", text, "give all ranks the same files");
    if (named) return settings_model_of(o, table, n, &stored, path);
    if (!data_vocab && !o->vocab && !option_given(table, n, "model")) {
        die_usage("%s holds %s, which do not say of which vocabulary: give --vocab", o->data,
                  token_formats[t->train_files.format].name);
    }
    const ModelConfig model = settings_model(o, table, n, data_vocab);
    if (!model_check_trained(&model, &error)) die_usage("%s", error.text);
    return model;
}

// Warns of a large vocabulary for bytes: the text was probably meant to be tokenized.
static inline void warn_of_bytes(const Trainer* t, int V) {
    if (!is_main(t) || t->tokenizer.vocab != 256 || t->tokenizer.split != SPLIT_BYTES || V < 4 * 256) return;
    print_message(
        "warning: the model has a vocabulary of %d, but the data are bytes, which use 256 of it; --vocab 256 makes "
        "a model of bytes, build/tokenize makes tokens of a text",
        V);
}

// Says which tokens begin and end a text: as the initial weights do, else the token before the data's documents.
static inline bool choose_ends(char text[CONFIG_ENDS_TEXT], const Trainer* t, int V, const char* weights,
                               Error* error) {
    char config[CHECKPOINT_PATH], number[16] = "null";
    if (!checkpoint_path(config, error, "%s/config.json", weights)) return false;
    if (weights[0] && access(config, F_OK) == 0) return config_read_ends(text, config, error);
    const int of_format = t->train_files.files ? token_formats[t->train_files.format].document : -1;
    const int token = t->tokenizer.vocab ? t->tokenizer.document : of_format;
    if (token >= 0 && token < V) snprintf(number, sizeof number, "%d", token);
    snprintf(text, CONFIG_ENDS_TEXT, ",\n  \"bos_token_id\": %s,\n  \"eos_token_id\": %s", number, number);
    return true;
}

// Gathers the files that rank 0 writes beside the model, some from the folder of the initial weights: the newest
// checkpoint, or the folder of --init.
static inline void gather_hub_files(Trainer* t, const ModelConfig* model) {
    const Settings* o = &t->settings;
    char weights[CHECKPOINT_PATH] = "";
    Error error;
    bool ok = true;
    if (is_main(t)) {
        if (!o->resume || !newest_model(weights, o->out)) weights[0] = 0;
        if (!weights[0] && o->init) init_folder(weights, sizeof weights, o->init);
        HubSources sources = {&t->tokenizer, t->vocabulary, weights, model->T};
        ok = choose_ends(t->hub_files.config, t, model->V, weights, &error) &&
             hub_files_gather(&t->hub_files, &sources, &error);
    }
    check_all_ranks(t, ok, &error);
}

// How many blocks of the data a new run holds out to validate on; none with --val.
static inline int held_out_blocks(const Settings* o) { return o->val || !o->eval_every ? 0 : HELD_OUT_BLOCKS; }

// Opens the loader of training, without the held-out blocks, and of validation: these blocks, or --val.
static inline void open_loaders(Trainer* t, int blocks) {
    const Settings* o = &t->settings;
    const int T = t->stage.T, V = t->stage.model.V;
    const TokenFiles* val = o->val ? &t->val_files : &t->train_files;
    const Part part = blocks ? PART_TRAINED : PART_ALL, held_out = o->val ? PART_ALL : PART_HELD_OUT;
    Error error, why;
    t->held_out = blocks;
    bool ok = dataloader_init(&t->train, &t->train_files, part, blocks, T, V, (uint64_t)o->seed, true, &error);
    if (ok && o->eval_every && !dataloader_init(&t->val, val, held_out, blocks, T, V, 0, false, &why)) {
        ok = fail(&error, "validation: %.900s; or give --val, or --eval-every 0", why.text);
    }
    check_all_ranks(t, ok, &error);
}

// --evaluate: opens the files, checks that they fit the model.
static inline void open_evaluations(Trainer* t) {
    const char* names = t->settings.evaluate;
    Error error, why;
    if (!names) return;
    bool ok = evaluations_open(&t->evaluations, names, &error);
    uint64_t checksum = 0;
    for (int i = 0; i < t->evaluations.count && ok; i++) {
        Evaluation* e = &t->evaluations.item[i];
        ok = evaluation_fit(e, t->stage.T, t->stage.model.V, &error);
        checksum = 31 * checksum + hash_bytes(e->map.data, e->map.size);
    }
    if (!ok) ok = fail(&why, "--evaluate: %.1000s", error.text);
    check_all_ranks(t, ok, &why);
    char text[64];
    snprintf(text, sizeof text, "checksum %016llx", (unsigned long long)checksum);
    comm_check_same(&t->world, "files to evaluate", text, "give all ranks the same files");
}
