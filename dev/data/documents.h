/*
dev/data/documents.h: reads texts on disk as documents, on all cores.

    text      a document is a file, or the text between two delimiters (without the white space around it). Any bytes.
    JSONL     a file whose name ends in .jsonl: a document is a line, an object with the text in one field.
    folder    all files in it and below that are one of these, in the order of their names; others, and hidden ones, are
              omitted.

    texts_open    opens files, patterns and folders; texts_work: processes all documents by threads

Theory. The files are cut into parts of about a megabyte: whole documents if there are delimiters or lines, else pieces
of a text, cut where that does not change its tokens (tokenizer_cut). Threads take the parts in turn; their results are
processed in the order of the parts. So the result does not depend on the number of threads, and at most one part for
each thread is in memory. A fraction of the documents is for validation, drawn from the seed, the file's number and the
document's offset; if there is only one document, its end is.
*/
#pragma once

#include "../../dataloader.h"
#include "../../dataloader/text.h"
#include "cut.h"
#include <dirent.h>
#include <pthread.h>
#include <sched.h>

enum { PART_BYTES = 1 << 20, THREADS_MOST = 256 };

// ---- Files ------------------------------------------------------------------------------------------------------

typedef struct {
    char* path;
    MappedFile map; // while parts of it are at work: a folder may have more files than a process can map
    int parts;      // that are at work
    bool lines;     // JSONL
} TextFile;

typedef struct {
    TextFile* file;
    int files, room, skipped;
    int64_t bytes;
    const char *field, *delimiter; // delimiter: NULL where a file is one document
    double validation;             // part of the documents
    uint64_t seed;
    const Tokenizer* tokenizer; // what says where a text may be cut
    bool special;
} Texts;

static inline void texts_close(Texts* texts) {
    for (int i = 0; i < texts->files; i++) {
        file_unmap(&texts->file[i].map);
        free(texts->file[i].path);
    }
    free(texts->file);
    texts->file = NULL;
    texts->files = texts->room = 0;
}

// Appends a file. A file that is no text is an error if it was named, and is omitted if it was found in a folder.
static inline bool texts_add_file(Texts* texts, const char* path, bool named, Error* error) {
    MappedFile map;
    if (!file_map(&map, path, error)) return false;
    const size_t size = map.size;
    const bool text = size == 0 || file_looks_like_text(map.data, size);
    if (!text && named) fail(error, "%s: not a text: it has NUL bytes, or too many control characters", path);
    file_unmap(&map);
    if (size == 0 || !text) {
        texts->skipped++;
        return text || !named;
    }
    if (texts->files == texts->room)
        texts->file = (TextFile*)checked_grow(texts->file, &texts->room, 64, sizeof *texts->file, "a list of files");
    const TextFile file = {checked_strdup(path, "a list of files"), map, 0, name_ends_with(path, ".jsonl")};
    texts->file[texts->files++] = file;
    texts->bytes += (int64_t)size;
    return true;
}

// Appends all files in a folder ("": the current one) and below it, folder by folder in the order of their names.
// Hidden files are omitted, as are links to folders, which may lead back here.
static inline bool texts_below(PathList* list, const char* folder, Error* error) {
    DIR* open = opendir(*folder ? folder : ".");
    if (!open) return fail(error, "%s: cannot read the folder: %s", folder, strerror(errno));
    PathList names = {NULL, 0, 0};
    for (const struct dirent* entry = readdir(open); entry; entry = readdir(open)) {
        if (entry->d_name[0] != '.') path_list_append(&names, entry->d_name);
    }
    closedir(open);
    if (names.count) qsort(names.path, (size_t)names.count, sizeof(char*), compare_paths);
    const char* between = *folder && !name_ends_with(folder, "/") ? "/" : "";
    bool ok = true;
    for (int i = 0; i < names.count && ok; i++) {
        char path[4096];
        struct stat link, file;
        if (snprintf(path, sizeof path, "%s%s%s", folder, between, names.path[i]) >= (int)sizeof path) {
            ok = fail(error, "%.200s...: the name is too long", path);
        } else if (lstat(path, &link) == 0 && S_ISDIR(link.st_mode)) {
            ok = texts_below(list, path, error);
        } else if (stat(path, &file) == 0 && S_ISREG(file.st_mode)) {
            path_list_append(list, path);
        }
    }
    path_list_free(&names);
    return ok;
}

static inline bool texts_add_folder(Texts* texts, const char* path, Error* error) {
    PathList found = {NULL, 0, 0};
    bool ok = texts_below(&found, path, error);
    for (int i = 0; i < found.count && ok; i++) ok = texts_add_file(texts, found.path[i], false, error);
    path_list_free(&found);
    return ok;
}

// Opens a comma-separated list of files, patterns and folders. False: *error has the reason, and nothing is open.
static inline bool texts_open(Texts* texts, const char* globs, Error* error) {
    PathList list = {NULL, 0, 0};
    bool ok = path_list_append_names(&list, globs, error);
    for (int i = 0; i < list.count && ok; i++) {
        struct stat st;
        const bool folder = stat(list.path[i], &st) == 0 && S_ISDIR(st.st_mode);
        ok = folder ? texts_add_folder(texts, list.path[i], error) : texts_add_file(texts, list.path[i], true, error);
    }
    path_list_free(&list);
    if (ok && texts->files == 0) ok = fail(error, "%s: no text in it", globs);
    if (!ok) texts_close(texts);
    return ok;
}

// ---- Parts ------------------------------------------------------------------------------------------------------

// Bytes [begin, end) of a file.
typedef struct {
    int file;
    size_t begin, end;
    bool begins;    // the first byte is the first of a document
    bool validates; // of a single document: this is its end
} TextPart;

// The beginning of the next part.
typedef struct {
    int file;
    size_t at, tail; // tail: of a single document, where the held-out part begins
} TextCursor;

static inline bool is_one_document(const Texts* texts) {
    return texts->files == 1 && !texts->file[0].lines && !texts->delimiter;
}

// Takes a part of a file, which is mapped for the first of them; file_give returns it.
static inline bool file_take(TextFile* file, Error* error) {
    if (!file->map.data && !file_map(&file->map, file->path, error)) return false;
    file->parts++;
    return true;
}

static inline void file_give(TextFile* file) {
    if (--file->parts == 0) file_unmap(&file->map);
}

static inline bool texts_begin(TextCursor* cursor, const Texts* texts, Error* error) {
    memset(cursor, 0, sizeof *cursor);
    if (!is_one_document(texts) || texts->validation <= 0) return true;
    TextFile* file = &texts->file[0];
    if (!file_take(file, error)) return false;
    const size_t size = file->map.size;
    cursor->tail = tokenizer_cut(texts->tokenizer, file->map.data, size,
                                 (size_t)((double)size * (1 - texts->validation)), texts->special);
    file_give(file);
    return true;
}

static inline size_t min_size(size_t a, size_t b) { return a < b ? a : b; }

// The end of the part that begins at `begin`.
static inline size_t part_end(const Texts* texts, const TextFile* file, size_t begin, size_t size) {
    const unsigned char* text = file->map.data;
    if (size - begin <= PART_BYTES) return size;
    const size_t least = begin + PART_BYTES;
    if (!file->lines && !texts->delimiter)
        return begin + tokenizer_cut(texts->tokenizer, text + begin, size - begin, PART_BYTES, texts->special);
    const char* mark = file->lines ? "\n" : texts->delimiter;
    const unsigned char* found = (const unsigned char*)memmem(text + least, size - least, mark, strlen(mark));
    return found ? (size_t)(found - text) + strlen(mark) : size;
}

// Takes the next part, which has to exist. False: its file cannot be read any more.
static inline bool texts_next(TextPart* part, TextCursor* cursor, const Texts* texts, Error* error) {
    part->file = cursor->file;
    TextFile* file = &texts->file[cursor->file];
    if (!file_take(file, error)) return false;
    const size_t size = file->map.size;
    const bool tail = cursor->tail && cursor->at >= cursor->tail;
    part->begin = min_size(cursor->at, size);
    part->validates = tail;
    part->begins = cursor->at == 0 || (tail && cursor->at == cursor->tail);
    part->end = part_end(texts, file, part->begin, cursor->tail && !tail ? min_size(cursor->tail, size) : size);
    cursor->at = part->end;
    if (cursor->at == size) {
        cursor->file++;
        cursor->at = 0;
    }
    return true;
}

// ---- Documents of a part ----------------------------------------------------------------------------------------

typedef struct {
    const unsigned char* text;
    size_t n;       // > 0
    bool begins;    // false: it continues the document before
    bool validates; // it is for validation
} Document;

typedef void (*TakeDocument)(void* context, const Document* document);

// Whether the document at this byte of a file is drawn for validation.
static inline bool is_drawn(const Texts* t, int file, size_t at) {
    return random_uniform(t->seed, hash_string("documents to validate on") + (uint64_t)file, (uint64_t)at) <
           (float)t->validation;
}

// Passes the documents between delimiters to `take`; the part consists of whole documents.
static inline void part_between(const Texts* texts, const TextPart* part, TakeDocument take, void* context) {
    const unsigned char* text = texts->file[part->file].map.data;
    const size_t mark = strlen(texts->delimiter);
    for (size_t at = part->begin, next; at < part->end; at = next) {
        const unsigned char* found = (const unsigned char*)memmem(text + at, part->end - at, texts->delimiter, mark);
        size_t begin = at, end = found ? (size_t)(found - text) : part->end;
        next = found ? end + mark : end;
        while (begin < end && is_blank(text[begin])) begin++;
        while (begin < end && is_blank(text[end - 1])) end--;
        const Document document = {text + begin, end - begin, true, is_drawn(texts, part->file, at)};
        if (document.n > 0) take(context, &document);
    }
}

typedef struct {
    const Texts* texts;
    int file;
    TakeDocument take;
    void* context;
} TakeLines;

static inline bool take_text(void* context, const Json* line, size_t at, Error* error) {
    const TakeLines* lines = (const TakeLines*)context;
    const JsonNode* text = json_require(line, line->nodes, lines->texts->field, JSON_STRING, error);
    if (!text || text->count == 0) return text != NULL;
    const Document document = {(const unsigned char*)text->value.string, text->count, true,
                               is_drawn(lines->texts, lines->file, at)};
    lines->take(lines->context, &document);
    return true;
}

// Passes the documents of a part to `take`, in their order.
static inline bool part_documents(const Texts* texts, const TextPart* part, TakeDocument take, void* context,
                                  Error* error) {
    const TextFile* file = &texts->file[part->file];
    if (file->lines) {
        TakeLines lines = {texts, part->file, take, context};
        return jsonl_lines(file->map.data, part->begin, part->end, file->path, take_text, &lines, error);
    }
    if (texts->delimiter) {
        part_between(texts, part, take, context);
        return true;
    }
    const bool drawn = is_one_document(texts) ? part->validates : is_drawn(texts, part->file, 0);
    const Document document = {file->map.data + part->begin, part->end - part->begin, part->begins, drawn};
    take(context, &document);
    return true;
}

// ---- Threads ----------------------------------------------------------------------------------------------------

// The work on the documents of a part; finish is called in the order of the parts, by one thread at a time.
typedef struct {
    TakeDocument take;
    bool (*finish)(void* context, Error* error);
    void** context; // (threads)
    int threads;
} TextWork;

typedef struct {
    const Texts* texts;
    const TextWork* work;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    TextCursor cursor;
    int64_t taken, finished; // parts
    int64_t bytes;           // of those that are finished
    int ready;               // threads that have ended
    int started;
    bool failed;
    Error error;
} TextPool;

// A thread. Shared fields are used under the lock.
static inline void* pool_thread(void* argument) {
    TextPool* pool = (TextPool*)argument;
    TextPart part;
    pthread_mutex_lock(&pool->lock);
    void* context = pool->work->context[pool->started++];
    while (!pool->failed && pool->cursor.file < pool->texts->files) {
        const int64_t ticket = pool->taken++;
        Error error;
        bool ok = texts_next(&part, &pool->cursor, pool->texts, &error);
        if (ok) {
            pthread_mutex_unlock(&pool->lock);
            ok = part_documents(pool->texts, &part, pool->work->take, context, &error);
            pthread_mutex_lock(&pool->lock);
            file_give(&pool->texts->file[part.file]);
        }
        while (pool->finished != ticket && !pool->failed) pthread_cond_wait(&pool->changed, &pool->lock);
        if (pool->failed) break; // a part before this one
        ok = ok && pool->work->finish(context, &error);
        if (!ok) {
            pool->failed = true;
            pool->error = error;
        }
        pool->finished++;
        pool->bytes += ok ? (int64_t)(part.end - part.begin) : 0;
        pthread_cond_broadcast(&pool->changed);
    }
    pool->ready++;
    pthread_cond_broadcast(&pool->changed);
    pthread_mutex_unlock(&pool->lock);
    return NULL;
}

// Prints "tokenize  1.2 of 2.3 MB, 52 % | 45.3 MB/s | 25 s left", on the same line of a terminal, or as lines of a log.
static inline void pool_progress(const TextPool* pool, double seconds, bool terminal) {
    const double done = (double)pool->bytes, all = (double)pool->texts->bytes, rate = done / seconds;
    if (done == 0) return;
    fprintf(stderr, "%stokenize  %.1f of %.1f MB, %.0f %% | %.1f MB/s | %.0f s left%s", terminal ? "\r" : "",
            done / 1e6, all / 1e6, 100 * done / all, rate / 1e6, (all - done) / rate, terminal ? "   " : "\n");
    fflush(stderr);
}

// Waits for all threads, and prints the progress.
static inline void pool_wait(TextPool* pool) {
    const bool terminal = isatty(STDERR_FILENO);
    const double start = seconds_now(), every = terminal ? 0.5 : 10;
    double shown = start;
    while (pool->ready < pool->work->threads) {
        struct timespec until;
        clock_gettime(CLOCK_REALTIME, &until);
        until.tv_sec += 1;
        pthread_cond_timedwait(&pool->changed, &pool->lock, &until);
        const double now = seconds_now();
        if (now - shown < every) continue;
        shown = now;
        pool_progress(pool, now - start, terminal);
    }
    if (terminal && shown > start) fprintf(stderr, "\r%78s\r", "");
}

// Does the work on all parts. False: *error has the reason of the first part that failed; later parts may have been
// taken, but were not finished.
static inline bool texts_work(const Texts* texts, const TextWork* work, Error* error) {
    TextPool pool = {};
    pthread_t thread[THREADS_MOST];
    pool.texts = texts;
    pool.work = work;
    if (!texts_begin(&pool.cursor, texts, error)) return false;
    pthread_mutex_init(&pool.lock, NULL);
    pthread_cond_init(&pool.changed, NULL);
    pthread_mutex_lock(&pool.lock);
    for (int i = 0; i < work->threads; i++) {
        const int status = pthread_create(&thread[i], NULL, pool_thread, &pool);
        if (status != 0)
            die("cannot start thread %d of %d: %s; use fewer --threads", i + 1, work->threads, strerror(status));
    }
    pool_wait(&pool);
    pthread_mutex_unlock(&pool.lock);
    for (int i = 0; i < work->threads; i++) pthread_join(thread[i], NULL);
    pthread_cond_destroy(&pool.changed);
    pthread_mutex_destroy(&pool.lock);
    if (pool.failed) *error = pool.error;
    return !pool.failed;
}

// The number of cores that this process may use.
static inline int usual_threads(void) {
    cpu_set_t set;
    const int count = sched_getaffinity(0, sizeof set, &set) == 0 ? CPU_COUNT(&set) : 1;
    return (int)max_i64(1, min_i64(count, THREADS_MOST));
}
