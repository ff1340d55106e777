/*
tokenize.c: texts to shards of tokens that train_gpt reads, on all cores.

    build/tokenize --tokenizer gpt2/ --data "books*.txt,more.jsonl" --out data/books --val 0.01
    ./train_gpt --data "data/books/train_*.bin" --val "data/books/val_*.bin"

A document is a text file, or a line of a file whose name ends in .jsonl, an object with the text in "text". The shards
are llm.c's: 256 int32 (magic number, version, number of tokens), then uint16 tokens where the vocabulary has at most
65,536 of them, uint32 otherwise. The document token precedes each document, as in llm.c's own files. The vocabulary's
files are copied beside the shards, where train_gpt finds them. The folder gets its name when all of it is written.

The files are cut into parts of about a megabyte: lines, or pieces of a text, cut where that does not change its tokens
(tokenizer/cut.h). Threads encode the parts of a batch, which are then written in their order: the same texts give the
same bytes with any number of threads. Every document is drawn to train on or to validate on; of a single text, the end
validates.
*/
#include "../../dataloader.h"
#include "../../dataloader/text.h"
#include "../../dataloader/tokenizer/cut.h"
#include "../../util/options.h"
#include <dirent.h>

enum { PART_BYTES = 1 << 20, BATCH = 64 };

// ---- Shards -----------------------------------------------------------------------------------------------------

// Writes tokens to FOLDER/NAME_000000.bin, ..., at most `most` tokens each.
typedef struct {
    const char *folder, *name;
    const TokenFormatFacts* format;
    int64_t most;
    FILE* file;     // of the last shard
    int64_t inside; // tokens in it
    int64_t tokens; // in all
    int shards;
} ShardWriter;

static bool shard_failed(const ShardWriter* writer, Error* error) {
    return fail(error, "%s: cannot write %s_%06d.bin: %s", writer->folder, writer->name, writer->shards - 1,
                strerror(errno));
}

// Writes the number of tokens into the header, and all of it to the disk.
static bool shard_close(ShardWriter* writer, Error* error) {
    if (!writer->file) return true;
    const int32_t count = (int32_t)writer->inside;
    const bool written = fseek(writer->file, 2 * sizeof count, SEEK_SET) == 0 &&
                         fwrite(&count, sizeof count, 1, writer->file) == 1 && fflush(writer->file) == 0 &&
                         fsync(fileno(writer->file)) == 0;
    const bool ok = written || shard_failed(writer, error);
    fclose(writer->file);
    writer->file = NULL;
    return ok;
}

static bool shard_open(ShardWriter* writer, Error* error) {
    char path[4096];
    snprintf(path, sizeof path, "%s/%s_%06d.bin", writer->folder, writer->name, writer->shards++);
    writer->file = fopen(path, "wb");
    writer->inside = 0;
    const int32_t header[256] = {(int32_t)writer->format->magic, (int32_t)writer->format->version};
    return (writer->file && fwrite(header, sizeof header, 1, writer->file) == 1) || shard_failed(writer, error);
}

// Appends tokens, opening shards as needed.
static bool shard_write(ShardWriter* writer, const TokenList* list, Error* error) {
    uint16_t narrow[4096];
    for (size_t at = 0, piece; at < list->count; at += piece) {
        if (!writer->file || writer->inside == writer->most)
            if (!shard_close(writer, error) || !shard_open(writer, error)) return false;
        const int64_t room = min_i64(writer->most - writer->inside, sizeof narrow / sizeof narrow[0]);
        piece = (size_t)min_i64((int64_t)(list->count - at), room);
        for (size_t i = 0; i < piece; i++) narrow[i] = (uint16_t)list->token[at + i];
        const bool wide = writer->format->type == TOKEN_UINT32;
        const void* data = wide ? (const void*)&list->token[at] : (const void*)narrow;
        if (fwrite(data, wide ? 4 : 2, piece, writer->file) != piece) return shard_failed(writer, error);
        writer->inside += (int64_t)piece;
        writer->tokens += (int64_t)piece;
    }
    return true;
}

// Removes a folder of files.
static void folder_remove(const char* path) {
    DIR* folder = opendir(path);
    if (!folder) return;
    for (const struct dirent* entry; (entry = readdir(folder));) unlinkat(dirfd(folder), entry->d_name, 0);
    closedir(folder);
    rmdir(path);
}

static bool copy_file(const char* path, const char* folder, const char* name, Error* error) {
    char to[4096];
    MappedFile file;
    snprintf(to, sizeof to, "%s/%s", folder, name);
    if (!file_map(&file, path, error)) return false;
    FILE* out = fopen(to, "wb");
    const bool written = out && fwrite(file.data, 1, file.size, out) == file.size;
    file_unmap(&file);
    return (out && fclose(out) == 0 && written) || fail(error, "%s: cannot write: %s", to, strerror(errno));
}

// Copies the vocabulary's files to a folder; path: its file, or its folder.
static bool copy_vocabulary(const char* path, const char* folder, Error* error) {
    char inside[4096], merges[4096];
    if (tokenizer_in_folder(inside, sizeof inside, path)) path = inside;
    if (!tokenizer_is_pair(path)) return copy_file(path, folder, "tokenizer.json", error);
    beside(merges, sizeof merges, path, "merges.txt");
    return copy_file(path, folder, "vocab.json", error) && copy_file(merges, folder, "merges.txt", error);
}

// ---- Parts ------------------------------------------------------------------------------------------------------

typedef struct TextRun TextRun;

// Bytes [begin, end) of a file, and what they become.
typedef struct {
    const TextRun* run;
    Encoder* encoder; // of the thread at work
    int file;
    size_t begin, end;
    bool begins, validates; // a text: its first document begins here; it is to validate on
    TokenList tokens[2];    // to train, to validate on
    int64_t documents;      // that begin here
    bool ok;
    Error error;
} TextPart;

struct TextRun {
    const char *tokenizer_path, *data, *out; // options
    double val;
    int64_t shard;
    bool special;
    Tokenizer tokenizer;
    PathList paths;
    MappedFile map; // of the next part's file, `file`, if that is open
    int file;
    bool open;
    size_t at, tail;   // where the next part begins; of a single text, where the end to validate on begins, or 0
    double bytes, all; // written, of all files
    int parts;         // in the batch
    TextPart part[BATCH];
    char folder[4096]; // that becomes `out`
    ShardWriter shards[2];
    int64_t documents;
    double began, told;
};

// Whether the document at this byte of a file is drawn to validate on.
static bool is_drawn(const TextPart* part, size_t at) {
    const uint64_t stream = hash_string("documents to validate on") + (uint64_t)part->file;
    return random_uniform(42, stream, (uint64_t)at) < (float)part->run->val;
}

static void encode_document(TextPart* part, const unsigned char* text, size_t n, bool begins, bool validates) {
    const Tokenizer* tokenizer = &part->run->tokenizer;
    TokenList* list = &part->tokens[validates];
    part->documents += begins;
    token_list_reserve(list, 1);
    if (begins) list->token[list->count++] = (uint32_t)tokenizer->document;
    tokenizer_encode(tokenizer, part->encoder, list, text, n, part->run->special);
}

static bool encode_line(void* context, const Json* line, size_t at, Error* error) {
    TextPart* part = (TextPart*)context;
    const JsonNode* text = json_require(line, line->nodes, "text", JSON_STRING, error);
    if (text && text->count > 0)
        encode_document(part, (const unsigned char*)text->value.string, text->count, true, is_drawn(part, at));
    return text != NULL;
}

static void part_encode(TextPart* part, Encoder* encoder) {
    const char* path = part->run->paths.path[part->file];
    MappedFile map;
    part->encoder = encoder;
    part->documents = 0;
    part->tokens[0].count = part->tokens[1].count = 0;
    part->ok = file_map(&map, path, &part->error);
    if (!part->ok) return;
    if (map.size < part->end)
        part->ok = fail(&part->error, "%s: became shorter while it was read", path);
    else if (name_ends_with(path, ".jsonl"))
        part->ok = jsonl_lines(map.data, part->begin, part->end, path, encode_line, part, &part->error);
    else
        encode_document(part, map.data + part->begin, part->end - part->begin, part->begins, part->validates);
    file_unmap(&map);
}

// Opens the file of the next part. False: *error has the reason.
static bool run_open(TextRun* run, Error* error) {
    const char* path = run->paths.path[run->file];
    if (!file_map(&run->map, path, error)) return false;
    const size_t size = run->map.size;
    run->open = true;
    run->at = run->tail = 0;
    if (size && !file_looks_like_text(run->map.data, size))
        return fail(error, "%s: not a text: it has NUL bytes, or too many control characters", path);
    if (run->paths.count == 1 && run->val > 0 && !name_ends_with(path, ".jsonl"))
        run->tail =
            tokenizer_cut(&run->tokenizer, run->map.data, size, (size_t)((double)size * (1 - run->val)), run->special);
    return true;
}

// The end of the part that begins at run->at, at `size` at most.
static size_t run_part_end(const TextRun* run, size_t size) {
    const unsigned char* text = run->map.data + run->at;
    const size_t n = size - run->at;
    if (n <= PART_BYTES) return size;
    if (!name_ends_with(run->paths.path[run->file], ".jsonl"))
        return run->at + tokenizer_cut(&run->tokenizer, text, n, PART_BYTES, run->special);
    const unsigned char* found = (const unsigned char*)memchr(text + PART_BYTES, '\n', n - PART_BYTES);
    return found ? run->at + (size_t)(found - text) + 1 : size;
}

// Makes the next batch of parts.
static bool run_read(TextRun* run, Error* error) {
    run->parts = 0;
    while (run->parts < BATCH && run->file < run->paths.count) {
        if (!run->open && !run_open(run, error)) return false;
        if (run->at == run->map.size) {
            file_unmap(&run->map);
            run->open = false;
            run->file++;
            continue;
        }
        TextPart* part = &run->part[run->parts++];
        const bool ends = run->tail && run->at >= run->tail; // the end to validate on
        part->run = run;
        part->file = run->file;
        part->begin = run->at;
        part->end = run->at = run_part_end(run, run->tail && !ends ? run->tail : run->map.size);
        part->begins = part->begin == 0 || part->begin == run->tail;
        part->validates = run->paths.count == 1 ? ends : is_drawn(part, 0);
    }
    return true;
}

// Prints "tokenize  1.2 of 2.3 MB, 52 % | 45.3 MB/s | 25 s left" every ten seconds.
static void run_tell(TextRun* run) {
    const double now = seconds_now(), rate = run->bytes / (now - run->began);
    if (now - run->told < 10) return;
    run->told = now;
    fprintf(stderr, "tokenize  %.1f of %.1f MB, %.0f %% | %.1f MB/s | %.0f s left\n", run->bytes / 1e6, run->all / 1e6,
            100 * run->bytes / run->all, rate / 1e6, (run->all - run->bytes) / rate);
}

// Writes the tokens of a batch, up to the first part that failed.
static bool run_write(TextRun* run, Error* error) {
    for (int i = 0; i < run->parts; i++) {
        const TextPart* part = &run->part[i];
        if (!part->ok) return fail(error, "%s", part->error.text);
        for (int k = 0; k < 2; k++)
            if (!shard_write(&run->shards[k], &part->tokens[k], error)) return false;
        run->documents += part->documents;
        run->bytes += (double)(part->end - part->begin);
    }
    run_tell(run);
    return true;
}

// Encodes all files by all threads, each with its own cache of words.
static bool run_encode(TextRun* run, Error* error) {
    bool ok = true, more = true;
#pragma omp parallel
    {
        Encoder encoder;
        encoder_open(&encoder);
        while (more) {
#pragma omp single
            ok = run_read(run, error);
#pragma omp for schedule(dynamic)
            for (int i = 0; i < run->parts; i++) part_encode(&run->part[i], &encoder);
#pragma omp single
            {
                ok = ok && run_write(run, error);
                more = ok && run->file < run->paths.count;
            }
        }
        encoder_close(&encoder);
    }
    return ok;
}

// ---- The program ------------------------------------------------------------------------------------------------

// Makes the folder and the shards. False: *error has the reason.
static bool run_all(TextRun* run, Error* error) {
    static const char* const names[] = {"train", "val"};
    if (!path_list_append_names(&run->paths, run->data, error)) return false;
    for (int i = 0; i < run->paths.count; i++) {
        struct stat st;
        if (stat(run->paths.path[i], &st) == 0) run->all += (double)st.st_size;
    }
    folder_remove(run->folder); // of a run that was killed
    if (mkdir(run->folder, 0777) != 0)
        return fail(error, "%s: cannot make the folder: %s", run->folder, strerror(errno));
    for (int k = 0; k < 2; k++) {
        run->shards[k].folder = run->folder;
        run->shards[k].name = names[k];
        run->shards[k].most = run->shard;
        run->shards[k].format = &token_formats[run->tokenizer.vocab <= 65536 ? TOKENS_GPT2_SHARD : TOKENS_LLAMA3_SHARD];
    }
    if (!run_encode(run, error)) return false;
    for (int k = 0; k < 2; k++) {
        if (!shard_close(&run->shards[k], error)) return false;
        if (run->shards[k].tokens == 0 && (k == 0 || run->val > 0))
            return fail(error, "no document is left to %s on: change --val", k ? "validate" : "train");
    }
    return copy_vocabulary(run->tokenizer_path, run->folder, error) &&
           (rename(run->folder, run->out) == 0 ||
            fail(error, "%s: cannot rename to %s: %s", run->folder, run->out, strerror(errno)));
}

static void run_print(const TextRun* run) {
    const double seconds = seconds_now() - run->began;
    const int64_t train = run->shards[0].tokens, val = run->shards[1].tokens;
    printf("%lld documents of %d files, %.1f MB: %lld tokens to train on, %lld to validate on, %.2f bytes a token\n",
           (long long)run->documents, run->paths.count, run->bytes / 1e6, (long long)train, (long long)val,
           run->bytes / (double)(train + val));
    printf("%d + %d shards in %s, vocabulary of %d; %.1f s, %.1f MB/s on %d threads\n", run->shards[0].shards,
           run->shards[1].shards, run->out, run->tokenizer.vocab, seconds, run->bytes / 1e6 / seconds,
           openmp_threads());
}

int main(int argc, char** argv) {
    static TextRun run;
    bool help = false;
    Error error;
    process.name = "tokenize";
    run.shard = 100000000;
    Option table[] = {
        option_string("data", &run.data, "GLOB", "texts and .jsonl files, comma-separated"),
        option_string("tokenizer", &run.tokenizer_path, "PATH",
                      "vocabulary: tokenizer.json, vocab.json beside merges.txt, or a folder with one"),
        option_flag("special", &run.special,
                    "special tokens that stand in a text are tokens; otherwise they are text like any other"),
        option_string("out", &run.out, "DIR",
                      "folder for train_000000.bin, ..., val_000000.bin, ... and the vocabulary"),
        option_float("val", &run.val, 0, 0.5, "part of the documents to validate on; of one text, its end"),
        option_int("shard-tokens", &run.shard, 1, 1 << 30, "tokens in a shard"),
        option_flag("help", &help, "this list"),
    };
    options_of_program(table, sizeof table / sizeof table[0], argc, argv, &help,
                       "tokenize makes shards of tokens from texts.");
    if (!run.data || !run.tokenizer_path || !run.out)
        die_usage("--data, --tokenizer and --out are needed; --help lists all options");
    if (snprintf(run.folder, sizeof run.folder, "%s.part", run.out) >= (int)sizeof run.folder)
        die_usage("--out %.100s...: too long", run.out);
    if (access(run.out, F_OK) == 0) die("%s exists; name another --out, or remove it", run.out);
    if (!tokenizer_open(&run.tokenizer, run.tokenizer_path, &error)) die("%s", error.text);
    if (run.tokenizer.document < 0)
        die("%s has neither <|endoftext|> nor <|begin_of_text|> to precede each document", run.tokenizer_path);
    run.began = run.told = seconds_now();
    const bool ok = run_all(&run, &error);
    if (!ok) folder_remove(run.folder);
    if (!ok) die("%s", error.text);
    run_print(&run);
    for (int i = 0; i < BATCH; i++) token_list_free(&run.part[i].tokens[0]), token_list_free(&run.part[i].tokens[1]);
    path_list_free(&run.paths);
    tokenizer_free(&run.tokenizer);
    return 0;
}
