/*
dev/data/documents.h: texts on disk as documents, read on all cores.

    text      a document is a file, or what stands between two delimiters (white space around one goes with it). Any bytes.
    JSONL     a file whose name ends in .jsonl: a document is a line, an object with the text in one field.
    folder    all files in it and below that are one of these, in the order of their names; others, and hidden ones, are left out.

The files are cut into parts of about a megabyte: whole documents where there are delimiters or lines, else pieces of a text, cut where
its tokens come apart (split_cut). Threads take the parts in turn and work on them; what they make is handed on in the order of the parts.
So the result does not depend on the number of threads, and no more than one part for each of them is in memory.

A part of the documents is for validation: each is drawn by itself, from the seed, its file's place and its own in there. Where all is one
document, its end is.
*/
#ifndef DOCUMENTS_H
#define DOCUMENTS_H

#include "../../dataloader.h"
#include "../../dataloader/jsonl.h"
#include <pthread.h>
#include <sched.h>

enum { PART_BYTES = 1 << 20, THREADS_MOST = 256 };

// ----------------------------------------------------------------------------------------------------------------
// Files

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

static inline void texts_close(Texts* t) {
    for (int i = 0; i < t->files; i++) {
        file_unmap(&t->file[i].map);
        free(t->file[i].path);
    }
    free(t->file);
    t->file = NULL, t->files = t->room = 0;
}

// Why a file that does not look like text cannot be read.
static inline const char* not_text(const MappedFile* map) {
    const char* foreign = foreign_format(map->data, map->size);
    if (foreign) return foreign;
    return "not a text: it has NUL bytes, or too many control characters";
}

// Appends a file. What is no text is an error where the file was named, and left out where it was found.
static inline bool texts_add_file(Texts* t, const char* path, bool named, Error* error) {
    MappedFile map;
    if (!file_map(&map, path, error)) return false;
    const size_t size = map.size;
    const bool text = size == 0 || file_looks_like_text(map.data, size);
    if (!text && named) fail(error, "%s: %s", path, not_text(&map));
    file_unmap(&map);
    if (size == 0 || !text) {
        t->skipped++;
        return text || !named;
    }
    if (t->files == t->room)
        t->file = (TextFile*)checked_grow(t->file, &t->room, 64, sizeof *t->file, "a list of files");
    const TextFile file = {strdup(path), map, 0, name_ends_with(path, ".jsonl")};
    if (!file.path) die("out of memory for the name %s", path);
    t->file[t->files++] = file;
    t->bytes += (int64_t)size;
    return true;
}

static inline bool texts_add_folder(Texts* t, const char* path, Error* error) {
    PathList found = {NULL, 0};
    bool ok = path_list_append_below(&found, path, error);
    for (int i = 0; i < found.count && ok; i++) ok = texts_add_file(t, found.path[i], false, error);
    path_list_free(&found);
    return ok;
}

// Opens all that `globs` names: files, patterns and folders between commas. False: *error says why, and nothing is open.
static inline bool texts_open(Texts* t, const char* globs, Error* error) {
    PathList list = {NULL, 0};
    bool ok = true;
    for (const char *p = globs, *comma; ok; p = comma + 1) {
        comma = strchrnul(p, ',');
        char* pattern = strndup(p, (size_t)(comma - p));
        if (!pattern) die("out of memory for a file pattern");
        ok = *pattern ? path_list_append_glob(&list, pattern, error)
                      : fail(error, "\"%s\": an empty name in the list of files", globs);
        free(pattern);
        if (!*comma) break;
    }
    for (int i = 0; i < list.count && ok; i++) {
        struct stat st;
        const bool folder = stat(list.path[i], &st) == 0 && S_ISDIR(st.st_mode);
        ok = folder ? texts_add_folder(t, list.path[i], error) : texts_add_file(t, list.path[i], true, error);
    }
    path_list_free(&list);
    if (ok && t->files == 0) ok = fail(error, "%s: no text in it", globs);
    if (!ok) texts_close(t);
    return ok;
}

// ----------------------------------------------------------------------------------------------------------------
// Parts

// Bytes [begin, end) of a file.
typedef struct {
    int file;
    size_t begin, end;
    bool begins;    // the first byte is the first of a document
    bool validates; // of a text that is all one document: this is its end
} TextPart;

// Where the next part begins.
typedef struct {
    int file;
    size_t at, tail; // tail: of a text that is all one document, where the part to validate on begins
} TextCursor;

static inline bool is_one_document(const Texts* t) { return t->files == 1 && !t->file[0].lines && !t->delimiter; }

// A part of a file is taken, which is mapped for the first of them; and given back.
static inline bool file_take(TextFile* file, Error* error) {
    if (!file->map.data && !file_map(&file->map, file->path, error)) return false;
    file->parts++;
    return true;
}

static inline void file_give(TextFile* file) {
    if (--file->parts == 0) file_unmap(&file->map);
}

static inline bool texts_begin(TextCursor* c, const Texts* t, Error* error) {
    memset(c, 0, sizeof *c);
    if (!is_one_document(t) || t->validation <= 0) return true;
    TextFile* file = &t->file[0];
    if (!file_take(file, error)) return false;
    const size_t size = file->map.size;
    c->tail =
        tokenizer_cut(t->tokenizer, file->map.data, size, (size_t)((double)size * (1 - t->validation)), t->special);
    file_give(file);
    return true;
}

static inline size_t min_size(size_t a, size_t b) { return a < b ? a : b; }

// Where the part ends that begins at `begin`.
static inline size_t part_end(const Texts* t, const TextFile* file, size_t begin, size_t size) {
    const unsigned char* s = file->map.data;
    if (size - begin <= PART_BYTES) return size;
    const size_t least = begin + PART_BYTES;
    if (!file->lines && !t->delimiter)
        return begin + tokenizer_cut(t->tokenizer, s + begin, size - begin, PART_BYTES, t->special);
    const char* mark = file->lines ? "\n" : t->delimiter;
    const unsigned char* found = (const unsigned char*)memmem(s + least, size - least, mark, strlen(mark));
    return found ? (size_t)(found - s) + strlen(mark) : size;
}

// The next part, whose file is taken; there has to be one. False: the file cannot be read any more.
static inline bool texts_next(TextPart* part, TextCursor* c, const Texts* t, Error* error) {
    part->file = c->file;
    TextFile* file = &t->file[c->file];
    if (!file_take(file, error)) return false;
    const size_t size = file->map.size;
    const bool tail = c->tail && c->at >= c->tail;
    part->begin = min_size(c->at, size), part->validates = tail;
    part->begins = c->at == 0 || (tail && c->at == c->tail);
    part->end = part_end(t, file, part->begin, c->tail && !tail ? min_size(c->tail, size) : size);
    c->at = part->end;
    if (c->at == size) c->file++, c->at = 0;
    return true;
}

// ----------------------------------------------------------------------------------------------------------------
// Documents of a part

typedef struct {
    const unsigned char* text;
    size_t n;       // > 0
    bool begins;    // false: it goes on with the document before
    bool validates; // it is one to validate on
} Document;

typedef void (*TakeDocument)(void* context, const Document* document);

// Whether the document at this byte of a file is drawn to validate on.
static inline bool is_drawn(const Texts* t, int file, size_t at) {
    return random_uniform(t->seed, hash_string("documents to validate on") + (uint64_t)file, (uint64_t)at) <
           (float)t->validation;
}

// The documents between delimiters; the part begins and ends with whole ones.
static inline void part_between(const Texts* t, const TextPart* part, TakeDocument take, void* context) {
    const unsigned char* s = t->file[part->file].map.data;
    const size_t mark = strlen(t->delimiter);
    for (size_t at = part->begin, next; at < part->end; at = next) {
        const unsigned char* found = (const unsigned char*)memmem(s + at, part->end - at, t->delimiter, mark);
        size_t begin = at, end = found ? (size_t)(found - s) : part->end;
        next = found ? end + mark : end;
        while (begin < end && is_blank(s[begin])) begin++;
        while (begin < end && is_blank(s[end - 1])) end--;
        const Document d = {s + begin, end - begin, true, is_drawn(t, part->file, at)};
        if (d.n > 0) take(context, &d);
    }
}

typedef struct {
    const Texts* texts;
    int file;
    TakeDocument take;
    void* context;
} TakeLines;

static inline void take_text(void* context, const unsigned char* text, size_t n, size_t at) {
    const TakeLines* lines = (const TakeLines*)context;
    const Document d = {text, n, true, is_drawn(lines->texts, lines->file, at)};
    lines->take(lines->context, &d);
}

// Hands the documents of a part to `take`, in their order.
static inline bool part_documents(const Texts* t, const TextPart* part, TakeDocument take, void* context,
                                  Error* error) {
    const TextFile* file = &t->file[part->file];
    if (file->lines) {
        TakeLines lines = {t, part->file, take, context};
        return jsonl_texts(file->map.data, part->begin, part->end, t->field, file->path, take_text, &lines, error);
    }
    if (t->delimiter) {
        part_between(t, part, take, context);
        return true;
    }
    const bool drawn = is_one_document(t) ? part->validates : is_drawn(t, part->file, 0);
    const Document d = {file->map.data + part->begin, part->end - part->begin, part->begins, drawn};
    take(context, &d);
    return true;
}

// ----------------------------------------------------------------------------------------------------------------
// Threads

// What a thread does with a part, and what is then done with that in the order of the parts, by one thread at a time.
typedef struct {
    TakeDocument take;
    bool (*finish)(void* context, Error* error); // NULL: nothing
    void** context;                              // (threads)
    int threads;
} TextWork;

typedef struct {
    const Texts* texts;
    const TextWork* work;
    const char* name; // of the work, before progress; NULL: no progress is shown
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

// One thread. All that it shares with others it touches under the lock.
static inline void* pool_thread(void* argument) {
    TextPool* p = (TextPool*)argument;
    TextPart part;
    pthread_mutex_lock(&p->lock);
    void* context = p->work->context[p->started++];
    while (!p->failed && p->cursor.file < p->texts->files) {
        const int64_t ticket = p->taken++;
        Error error;
        bool ok = texts_next(&part, &p->cursor, p->texts, &error);
        if (ok) {
            pthread_mutex_unlock(&p->lock);
            ok = part_documents(p->texts, &part, p->work->take, context, &error);
            pthread_mutex_lock(&p->lock);
            file_give(&p->texts->file[part.file]);
        }
        while (p->finished != ticket && !p->failed) pthread_cond_wait(&p->changed, &p->lock);
        if (p->failed) break; // a part before this one
        ok = ok && (!p->work->finish || p->work->finish(context, &error));
        if (!ok) p->failed = true, p->error = error;
        p->finished++;
        p->bytes += ok ? (int64_t)(part.end - part.begin) : 0;
        pthread_cond_broadcast(&p->changed);
    }
    p->ready++;
    pthread_cond_broadcast(&p->changed);
    pthread_mutex_unlock(&p->lock);
    return NULL;
}

// "tokenize  1.2 of 2.3 GB, 52 % | 45.3 MB/s | 25 s left", in one place of a terminal, or as a line from time to time in a log.
static inline void pool_progress(const TextPool* p, double seconds, bool terminal) {
    const double done = (double)p->bytes, all = (double)p->texts->bytes, rate = done / seconds;
    if (done == 0) return;
    fprintf(stderr, "%s%-9s %.1f of %.1f MB, %.0f %% | %.1f MB/s | %.0f s left%s", terminal ? "\r" : "", p->name,
            done / 1e6, all / 1e6, 100 * done / all, rate / 1e6, (all - done) / rate, terminal ? "   " : "\n");
    fflush(stderr);
}

// Until all threads have ended; shows progress meanwhile.
static inline void pool_wait(TextPool* p) {
    const bool terminal = isatty(STDERR_FILENO);
    const double start = seconds_now(), every = terminal ? 0.5 : 10;
    double shown = start;
    while (p->ready < p->work->threads) {
        struct timespec until;
        clock_gettime(CLOCK_REALTIME, &until);
        until.tv_sec += 1;
        pthread_cond_timedwait(&p->changed, &p->lock, &until);
        const double now = seconds_now();
        if (!p->name || now - shown < every) continue;
        shown = now;
        pool_progress(p, now - start, terminal);
    }
    if (terminal && shown > start) fprintf(stderr, "\r%78s\r", "");
}

// Does the work on all parts. False: *error says what was wrong with the first part that failed; those behind it may have been taken, but
// were not finished.
static inline bool texts_work(const Texts* texts, const TextWork* work, const char* name, Error* error) {
    TextPool p;
    pthread_t thread[THREADS_MOST];
    memset(&p, 0, sizeof p);
    p.texts = texts, p.work = work, p.name = name;
    if (!texts_begin(&p.cursor, texts, error)) return false;
    pthread_mutex_init(&p.lock, NULL);
    pthread_cond_init(&p.changed, NULL);
    pthread_mutex_lock(&p.lock);
    for (int i = 0; i < work->threads; i++) {
        const int status = pthread_create(&thread[i], NULL, pool_thread, &p);
        if (status != 0)
            die("cannot start thread %d of %d: %s; use fewer --threads", i + 1, work->threads, strerror(status));
    }
    pool_wait(&p);
    pthread_mutex_unlock(&p.lock);
    for (int i = 0; i < work->threads; i++) pthread_join(thread[i], NULL);
    pthread_cond_destroy(&p.changed);
    pthread_mutex_destroy(&p.lock);
    if (p.failed) *error = p.error;
    return !p.failed;
}

// Cores that this process may use.
static inline int usual_threads(void) {
    cpu_set_t set;
    const int count = sched_getaffinity(0, sizeof set, &set) == 0 ? CPU_COUNT(&set) : 1;
    return count < 1 ? 1 : count > THREADS_MOST ? THREADS_MOST : count;
}

#endif
