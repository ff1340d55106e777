/*
tokenize.c: texts to shards of tokens that train_gpt reads, on all cores.

    build/tokenize --tokenizer gpt2/ --data "books,more.jsonl" --out data/books --val 0.01
    ./train_gpt --data "data/books/train_*.bin" --val "data/books/val_*.bin"

The shards are llm.c's: 256 int32 (magic number, version, number of tokens), then uint16 tokens where the vocabulary has
at most 65,536 of them, uint32 otherwise. The document token precedes each document, as in llm.c's own files. The
vocabulary's files are copied beside the shards, where train_gpt finds them. Shards get their names when all of them are
written. The same texts give the same bytes with any number of threads.
*/
#include "../../util/options.h"
#include "documents.h"

typedef struct {
    const char *tokenizer, *data, *out, *field, *delimiter, *document;
    double val;
    int64_t shard, threads, seed;
    bool special, no_document, help;
} TokenizeOptions;

// ---- Shards -----------------------------------------------------------------------------------------------------

// Writes tokens to FOLDER/NAME_000000.bin, ..., at most `most` tokens each.
typedef struct {
    const char *folder, *name;
    int width, magic, version;
    int64_t most;
    FILE* file;     // of the last shard
    int64_t inside; // tokens in it
    int64_t tokens; // in all
    int shards;
} ShardWriter;

static void shard_path(char* path, size_t size, const ShardWriter* writer, int shard, const char* end) {
    snprintf(path, size, "%s/%s_%06d.bin%s", writer->folder, writer->name, shard, end);
}

static bool shard_failed(const ShardWriter* writer, Error* error) {
    return fail(error, "%s: cannot write %s_%06d.bin.part: %s", writer->folder, writer->name, writer->shards - 1,
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
    shard_path(path, sizeof path, writer, writer->shards++, ".part");
    writer->file = fopen(path, "wb");
    writer->inside = 0;
    const int32_t header[256] = {writer->magic, writer->version};
    return (writer->file && fwrite(header, sizeof header, 1, writer->file) == 1) || shard_failed(writer, error);
}

// Appends tokens, opening shards as needed.
static bool shard_write(ShardWriter* writer, const int32_t* token, size_t n, Error* error) {
    uint16_t narrow[4096];
    while (n > 0) {
        if (!writer->file || writer->inside == writer->most)
            if (!shard_close(writer, error) || !shard_open(writer, error)) return false;
        size_t piece = (size_t)min_i64((int64_t)n, writer->most - writer->inside);
        if (piece > sizeof narrow / sizeof narrow[0]) piece = sizeof narrow / sizeof narrow[0];
        for (size_t i = 0; i < piece; i++) narrow[i] = (uint16_t)token[i];
        const void* data = writer->width == 2 ? (const void*)narrow : (const void*)token;
        if (fwrite(data, (size_t)writer->width, piece, writer->file) != piece) return shard_failed(writer, error);
        writer->inside += (int64_t)piece;
        writer->tokens += (int64_t)piece;
        token += piece;
        n -= piece;
    }
    return true;
}

// Renames the shards to their names, or (keep = false) removes them.
static bool shards_end(ShardWriter* writer, bool keep, Error* error) {
    bool ok = shard_close(writer, error) || !keep;
    for (int i = 0; i < writer->shards; i++) {
        char part[4096], path[4096];
        shard_path(part, sizeof part, writer, i, ".part");
        shard_path(path, sizeof path, writer, i, "");
        if (!keep)
            unlink(part);
        else if (ok && rename(part, path) != 0)
            ok = fail(error, "%s: cannot rename to %s: %s", part, path, strerror(errno));
    }
    return ok;
}

// Refuses a folder that has shards already: they would be among the new ones.
static bool shards_begin(ShardWriter* writer, const char* folder, const char* name, int vocab, int64_t most,
                         Error* error) {
    const TokenFormatFacts* facts = &token_formats[vocab <= 65536 ? TOKENS_GPT2_SHARD : TOKENS_LLAMA3_SHARD];
    memset(writer, 0, sizeof *writer);
    writer->folder = folder;
    writer->name = name;
    writer->most = most;
    writer->width = token_type_bytes[facts->type];
    writer->magic = facts->magic;
    writer->version = facts->version;
    char pattern[4096];
    glob_t found;
    snprintf(pattern, sizeof pattern, "%s/%s_*.bin", folder, name);
    const bool old = glob(pattern, 0, NULL, &found) == 0;
    if (old) fail(error, "%s exists; name another --out, or remove it", found.gl_pathv[0]);
    globfree(&found);
    return !old;
}

// ---- Work -------------------------------------------------------------------------------------------------------

typedef struct {
    const Tokenizer* tokenizer;
    Encoder encoder;
    TokenList list[2];  // of the part at work: to train, to validate on
    ShardWriter* out;   // (2), shared
    int64_t* documents; // shared
    int64_t begun;      // documents in the part
    bool special;
} TokenizeThread;

static void take_document(void* context, const Document* document) {
    TokenizeThread* thread = (TokenizeThread*)context;
    TokenList* list = &thread->list[document->validates];
    if (document->begins) thread->begun++;
    if (document->begins && thread->tokenizer->document >= 0) {
        token_list_reserve(list, 1);
        list->token[list->count++] = thread->tokenizer->document;
    }
    tokenizer_encode(thread->tokenizer, &thread->encoder, list, document->text, document->n, thread->special);
}

static bool finish_part(void* context, Error* error) {
    TokenizeThread* thread = (TokenizeThread*)context;
    *thread->documents += thread->begun;
    thread->begun = 0;
    for (int i = 0; i < 2; i++) {
        if (!shard_write(&thread->out[i], thread->list[i].token, thread->list[i].count, error)) return false;
        thread->list[i].count = 0;
    }
    return true;
}

static bool tokenize_all(const Texts* texts, const Tokenizer* tokenizer, ShardWriter out[2],
                         const TokenizeOptions* options, int64_t* documents, Error* error) {
    const int threads = (int)options->threads;
    TokenizeThread* thread = (TokenizeThread*)checked_calloc((size_t)threads, sizeof *thread, "threads");
    void* context[THREADS_MOST];
    for (int i = 0; i < threads; i++) {
        thread[i].tokenizer = tokenizer;
        thread[i].out = out;
        thread[i].special = options->special;
        thread[i].documents = documents;
        encoder_open(&thread[i].encoder);
        context[i] = &thread[i];
    }
    const TextWork work = {take_document, finish_part, context, threads};
    const bool ok = texts_work(texts, &work, error);
    for (int i = 0; i < threads; i++) {
        encoder_close(&thread[i].encoder);
        token_list_free(&thread[i].list[0]);
        token_list_free(&thread[i].list[1]);
    }
    free(thread);
    return ok;
}

// Copies a file to FOLDER/NAME.
static bool copy_file(const char* path, const char* folder, const char* name, Error* error) {
    char part[4096], to[4096];
    MappedFile file;
    snprintf(to, sizeof to, "%s/%s", folder, name);
    snprintf(part, sizeof part, "%s/%s.part", folder, name);
    if (!file_map(&file, path, error)) return false;
    FILE* out = fopen(part, "wb");
    const bool written = out && fwrite(file.data, 1, file.size, out) == file.size;
    file_unmap(&file);
    if (out && fclose(out) == 0 && written && rename(part, to) == 0) return true;
    fail(error, "%s: cannot write: %s", part, strerror(errno));
    unlink(part);
    return false;
}

// Copies the vocabulary's files to a folder; path: its file, or its folder.
static bool copy_vocabulary(const char* path, const char* folder, Error* error) {
    char inside[4096], merges[4096];
    if (tokenizer_in_folder(inside, sizeof inside, path)) path = inside;
    if (!tokenizer_is_pair(path)) return copy_file(path, folder, "tokenizer.json", error);
    beside(merges, sizeof merges, path, "merges.txt");
    return copy_file(path, folder, "vocab.json", error) && copy_file(merges, folder, "merges.txt", error);
}

static bool choose_document_token(Tokenizer* tokenizer, const TokenizeOptions* options, Error* error) {
    if (options->document) tokenizer->document = tokenizer_added(tokenizer, options->document);
    if (options->document && tokenizer->document < 0)
        return fail(error, "--document-token %s: the vocabulary has no special token of this name", options->document);
    if (options->no_document) tokenizer->document = -1;
    return options->no_document || tokenizer->document >= 0 ||
           fail(error,
                "%s has no <|endoftext|>: name the token between documents with --document-token, or say "
                "--no-document-token",
                options->tokenizer);
}

static bool run(const TokenizeOptions* options, Error* error) {
    Tokenizer tokenizer;
    Texts texts = {};
    ShardWriter out[2];
    int64_t documents = 0;
    if (!tokenizer_open(&tokenizer, options->tokenizer, error)) return false;
    texts.field = options->field;
    texts.delimiter = options->delimiter;
    texts.validation = options->val;
    texts.seed = (uint64_t)options->seed;
    texts.tokenizer = &tokenizer;
    texts.special = options->special;
    const double start = seconds_now();
    bool ok = choose_document_token(&tokenizer, options, error) && texts_open(&texts, options->data, error);
    if (ok && mkdir(options->out, 0777) != 0 && errno != EEXIST)
        ok = fail(error, "%s: cannot make the folder: %s", options->out, strerror(errno));
    ok = ok && shards_begin(&out[0], options->out, "train", tokenizer.vocab, options->shard, error) &&
         shards_begin(&out[1], options->out, "val", tokenizer.vocab, options->shard, error);
    if (ok) {
        ok = tokenize_all(&texts, &tokenizer, out, options, &documents, error);
        for (int i = 0; i < 2 && ok; i++)
            if (out[i].tokens == 0 && (i == 0 || options->val > 0))
                ok = fail(error, "no document is left to %s on: change --val, or draw again with another --seed",
                          i ? "validate" : "train");
        ok = ok && copy_vocabulary(options->tokenizer, options->out, error);
        for (int i = 0; i < 2; i++) ok = shards_end(&out[i], ok, error) && ok;
    }
    if (ok) {
        const double seconds = seconds_now() - start, bytes = (double)texts.bytes;
        printf("%lld documents of %d files (%d others left out), %.1f MB: %lld tokens to train on, %lld to validate "
               "on, %.2f bytes a token\n",
               (long long)documents, texts.files, texts.skipped, bytes / 1e6, (long long)out[0].tokens,
               (long long)out[1].tokens, bytes / (double)(out[0].tokens + out[1].tokens));
        printf("%d + %d shards in %s, vocabulary of %d; %.1f s, %.1f MB/s on %d threads\n", out[0].shards,
               out[1].shards, options->out, tokenizer.vocab, seconds, bytes / 1e6 / seconds, (int)options->threads);
    }
    texts_close(&texts);
    tokenizer_free(&tokenizer);
    return ok;
}

int main(int argc, char** argv) {
    process.name = "tokenize";
    TokenizeOptions options = {};
    Error error;
    options.field = "text";
    options.shard = 100000000;
    options.threads = usual_threads();
    options.seed = 42;
    Option table[] = {
        option_heading("from"),
        option_string("data", &options.data, "GLOB",
                      "texts, .jsonl files and folders of these, comma-separated; a file that is text is one document"),
        option_string("field", &options.field, "NAME", "of a line of .jsonl: where the text is"),
        option_string("delimiter", &options.delimiter, "TEXT", "what stands between two documents in a text"),
        option_heading("by"),
        option_string("tokenizer", &options.tokenizer, "PATH",
                      "vocabulary: tokenizer.json, vocab.json beside merges.txt, or a folder with one"),
        option_flag("special", &options.special,
                    "special tokens that stand in a text are tokens; otherwise they are text like any other"),
        option_string("document-token", &options.document, "NAME",
                      "the special token before each document [<|endoftext|>, or <|begin_of_text|>]"),
        option_flag("no-document-token", &options.no_document, "documents follow each other without one"),
        option_heading("to"),
        option_string("out", &options.out, "DIR",
                      "folder for train_000000.bin, ..., val_000000.bin, ... and the vocabulary"),
        option_float("val", &options.val, 0, 0.5, "part of the documents to validate on; of one text, its end"),
        option_int("shard-tokens", &options.shard, 1, 1 << 30, "tokens in a shard"),
        option_int("threads", &options.threads, 1, THREADS_MOST, "[all cores]"),
        option_int("seed", &options.seed, 0, 9e15, "of the draw of the documents to validate on"),
        option_flag("help", &options.help, "this list"),
    };
    const int n = (int)(sizeof table / sizeof table[0]);
    options_of_program(table, n, argc, argv, &options.help, "tokenize makes shards of tokens from texts.");
    if (!options.data || !options.tokenizer || !options.out)
        die_usage("--data, --tokenizer and --out are needed; --help lists all options");
    if (options.document && options.no_document)
        die_usage("--document-token %s and --no-document-token exclude each other", options.document);
    if (!run(&options, &error)) die("%s", error.text);
    return 0;
}
