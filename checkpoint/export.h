/*
checkpoint/export.h: writes the weights alone for other programs: at the end of a run, which may train nothing and only
convert files.

    --export FOLDER     config.json and model.safetensors, as transformers loads them, and the files beside them
                        (hub_files_gather)

    rank 0        export_begin      makes PATH.tmp, with the file at its final size
    every rank    export_write      writes and flushes its slices
    rank 0        export_publish    writes config.json, and renames PATH.tmp to PATH

Theory. Weights are float32. As for a checkpoint, nothing is gathered on one rank: all write their slices into one file,
and data ranks write buckets in turn. Between these calls the caller waits for all ranks and asks whether all have
succeeded. An existing PATH is never replaced, and no other file is touched that this run has not made.

Beside the model are the files of a Hugging Face folder, so that AutoTokenizer loads it and generate() ends where a text
ends. hub_files_gather collects them in memory before a run begins, as their folders may be removed during the run
(--keep-last).

    config.json                which tokens begin and end a text (bos_token_id, eos_token_id); checkpoint/hf_config.h
                               writes the rest
    generation_config.json     the same, and how to sample: copied from the initial weights, where they have one
    tokenizer.json             the vocabulary: the file in use (or vocab.json and merges.txt); for a run on bytes, the
                               256 bytes
    tokenizer_config.json      and special_tokens_map.json, added_tokens.json, chat_template.jinja: copied from the
                               vocabulary's folder; the first is written if it is missing
*/
#pragma once

#include "save.h"
#include "checkpoint.h"
#include "../dataloader/tokenizer.h"

// The sources of the files.
typedef struct {
    const Tokenizer* tokenizer; // vocab 0: not known
    const char* vocabulary;     // the file that it was read from; "": none
    const char* weights;        // the folder of the weights to start from; "": none
    int positions;
} HubSources;

static inline int hub_index(const char* name) {
    int i = 0;
    while (strcmp(checkpoint_hub_files[i], name) != 0) i++;
    return i;
}

static inline void hub_files_free(HubFiles* hub) {
    for (int i = 0; i < CHECKPOINT_HUB_FILES; i++) free(hub->text[i]);
    memset(hub, 0, sizeof *hub);
}

// Takes a file under this name.
static inline bool hub_take_file(HubFiles* hub, const char* path, const char* name, Error* error) {
    const int i = hub_index(name);
    MappedFile file;
    if (!file_map(&file, path, error)) return false;
    hub->text[i] = (char*)checked_malloc(file.size + 1, "a tokenizer's file");
    hub->size[i] = file.size;
    if (file.size) memcpy(hub->text[i], file.data, file.size);
    file_unmap(&file);
    return true;
}

// Takes a file from a folder if it exists and was not taken from another folder.
static inline bool hub_take(HubFiles* hub, const char* folder, const char* name, Error* error) {
    char path[CHECKPOINT_PATH];
    if (hub->text[hub_index(name)]) return true;
    return checkpoint_path(path, error, "%s/%s", folder, name) &&
           (access(path, F_OK) != 0 || hub_take_file(hub, path, name, error));
}

// A stream to write a file that no folder has, to be closed by hub_written. NULL: the file was taken from a folder.
static inline FILE* hub_write(HubFiles* hub, const char* name) {
    const int i = hub_index(name);
    if (hub->text[i]) return NULL;
    FILE* out = open_memstream(&hub->text[i], &hub->size[i]);
    if (!out) die("out of memory: %s", name);
    return out;
}

static inline void hub_written(FILE* out) {
    if (fclose(out) != 0) die("out of memory: the files of a tokenizer");
}

// Whether a folder has the vocabulary in use, to which its other files then belong; path: the vocabulary's file.
static inline bool hub_has_vocabulary(char* path, size_t size, const char* folder, const Tokenizer* used) {
    Tokenizer other;
    Error error;
    if (!tokenizer_in_folder(path, size, folder) || !tokenizer_open(&other, path, &error)) return false;
    const bool same = strcmp(tokenizer_checksum(&other).text, tokenizer_checksum(used).text) == 0;
    tokenizer_free(&other);
    return same;
}

// Takes the vocabulary's files from the folder of the weights if it has the same vocabulary, else from the vocabulary's
// own folder; if that folder's vocabulary is another file, the vocabulary alone.
static inline bool hub_take_vocabulary(HubFiles* hub, const HubSources* sources, Error* error) {
    char path[CHECKPOINT_PATH], folder[CHECKPOINT_PATH], of_folder[CHECKPOINT_PATH];
    const bool known = sources->tokenizer->vocab > 0; // else only transformers may know its format
    if (!known || !sources->weights[0] || !hub_has_vocabulary(path, sizeof path, sources->weights, sources->tokenizer))
        snprintf(path, sizeof path, "%s", sources->vocabulary);
    if (!path[0]) return true;
    const bool pair = tokenizer_is_pair(path);
    beside(folder, sizeof folder, path, ".");
    if (!tokenizer_in_folder(of_folder, sizeof of_folder, folder) ||
        strcmp(name_of_path(of_folder), name_of_path(path)) != 0)
        return hub_take_file(hub, path, pair ? "vocab.json" : "tokenizer.json", error) &&
               (!pair || hub_take(hub, folder, "merges.txt", error));
    for (int i = 0; i < CHECKPOINT_HUB_FILES; i++) {
        const bool sampling = strcmp(checkpoint_hub_files[i], "generation_config.json") == 0;
        if (!sampling && !hub_take(hub, folder, checkpoint_hub_files[i], error)) return false;
    }
    return true;
}

// Writes the files that no folder has.
static inline void hub_write_rest(HubFiles* hub, const HubSources* sources) {
    const Tokenizer* tokenizer = sources->tokenizer;
    if (!tokenizer->vocab) return;
    const bool pair = hub->text[hub_index("merges.txt")] && !hub->text[hub_index("tokenizer.json")];
    FILE* out = pair ? NULL : hub_write(hub, "tokenizer.json");
    if (out) {
        write_byte_tokenizer(out);
        hub_written(out);
    }
    out = hub_write(hub, "tokenizer_config.json");
    if (!out) return;
    fprintf(out, "{\n  \"tokenizer_class\": \"%s\",\n  \"model_max_length\": %d",
            pair ? "GPT2Tokenizer" : "PreTrainedTokenizerFast", sources->positions);
    if (tokenizer->document >= 0) {
        char* name = token_name(tokenizer, (uint32_t)tokenizer->document);
        fprintf(out, ",\n  \"bos_token\": ");
        json_write_string(out, name);
        fprintf(out, ",\n  \"eos_token\": ");
        json_write_string(out, name);
        free(name);
    }
    fputs(",\n  \"clean_up_tokenization_spaces\": false\n}\n", out);
    hub_written(out);
}

// Gathers all files; hub->config is the caller's. On failure there is nothing to free.
static inline bool hub_files_gather(HubFiles* hub, const HubSources* sources, Error* error) {
    const bool ok = (!sources->weights[0] || hub_take(hub, sources->weights, "generation_config.json", error)) &&
                    hub_take_vocabulary(hub, sources, error);
    if (ok)
        hub_write_rest(hub, sources);
    else
        hub_files_free(hub);
    return ok;
}

typedef struct {
    const char* path;
    char temporary[CHECKPOINT_PATH];
    CheckpointSites weights;
} Export;

// The folder that path is in.
static bool export_parent(char folder[CHECKPOINT_PATH], const char* path, Error* error) {
    const char* slash = strrchr(path, '/');
    if (!slash) return checkpoint_path(folder, error, ".");
    return checkpoint_path(folder, error, "%.*s", slash == path ? 1 : (int)(slash - path), path);
}

// All ranks: whether a model can be written to path, which must not exist.
static bool export_open(Export* job, const char* path, Error* error) {
    char parent[CHECKPOINT_PATH];
    struct stat st;
    memset(job, 0, sizeof *job);
    job->path = path;
    if (path[strlen(path) - 1] == '/') return fail(error, "--export %s: drop the last /", path);
    if (!checkpoint_path(job->temporary, error, "%s.tmp", path)) return false;
    if (lstat(path, &st) == 0 || lstat(job->temporary, &st) == 0)
        return fail(error, "--export %s: it, or %s.tmp, is there already, and would not be replaced", path, path);
    if (!export_parent(parent, path, error)) return false;
    if (access(parent, W_OK | X_OK) != 0)
        return fail(error, "--export %.512s: cannot write in %.400s: %s", path, parent, strerror(errno));
    return true;
}

// Rank 0, if a rank has failed after export_begin: removes the temporary files.
static void export_abandon(const Export* job) { checkpoint_remove(job->temporary); }

// Rank 0, first: makes the temporary files. If it fails, nothing is left behind.
static bool export_begin(const Export* job, const ModelConfig* model, Error* error) {
    if (mkdir(job->temporary, 0777) != 0)
        return fail(error, "--export: cannot make %s: %s", job->temporary, strerror(errno));
    if (checkpoint_create_files(job->temporary, model, &job->weights, error)) return true;
    export_abandon(job);
    return false;
}

// Every rank, after export_begin and once nothing is in flight between ranks: writes its slices.
static bool export_write(const Export* job, const Stage* stage, HeartbeatRow* row, Error* error) {
    CheckpointSum sum;
    return write_slices(stage, row, job->temporary, &job->weights, &sum, error);
}

// Rank 0, when all ranks have written. files: written beside the model.
static bool export_publish(const Export* job, const ModelConfig* model, const CaatConfig* caat, const HubFiles* files,
                           Error* error) {
    char path[CHECKPOINT_PATH];
    bool ok = checkpoint_path(path, error, "%s/config.json", job->temporary) &&
              checkpoint_write_config(path, model, caat, files->config, error) &&
              checkpoint_write_hub_files(job->temporary, files, error) && folder_sync(job->temporary, error);
    if (!ok) export_abandon(job);
    ok = ok && (rename(job->temporary, job->path) == 0 ||
                fail(error, "--export %.480s: cannot be given its name: %s; the weights are in %.480s", job->path,
                     strerror(errno), job->temporary));
    return ok && export_parent(path, job->path, error) && folder_sync(path, error);
}
