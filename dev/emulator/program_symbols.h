/*
program_symbols.h: the program's own symbols (ELF only; elsewhere, and in a stripped program, none): to name a kernel
in messages, and to find its static __shared__ variables, so that they can be NaN when a kernel begins. These are the
thread_local variables of functions, _ZZ<function>E<name>, and there must be no others. A thread_local variable has the
same distance from threadIdx in memory as in the table.

gcc guards variables of a class with constructors, like bf16, by a flag, _ZGVZ<function>E<name>, although there is
nothing to construct. To the race detector, the first thread would write it while others read it; so it is set (not 0)
before.
*/
#pragma once

namespace cuda_on_cpu {

#ifdef __linux__
struct Symbols {
    const Elf64_Sym *first, *last;
    const char* names;
    const Elf64_Sym *function, *variable; // cuda_on_cpu_switch and threadIdx, whose addresses are known
};

inline Symbols read_symbols() {
    Symbols s = {};
    struct stat size;
    const int fd = open("/proc/self/exe", O_RDONLY | O_CLOEXEC);
    if (fd < 0) return s;
    const void* p =
        fstat(fd, &size) == 0 ? mmap(nullptr, (size_t)size.st_size, PROT_READ, MAP_PRIVATE, fd, 0) : MAP_FAILED;
    close(fd);
    if (p == MAP_FAILED) return s;
    const char* file = (const char*)p;
    const Elf64_Ehdr* head = (const Elf64_Ehdr*)file;
    const Elf64_Shdr* section = (const Elf64_Shdr*)(file + head->e_shoff);
    for (int i = 0; i < head->e_shnum; i++)
        if (section[i].sh_type == SHT_SYMTAB) {
            s.first = (const Elf64_Sym*)(file + section[i].sh_offset);
            s.last = s.first + section[i].sh_size / sizeof(Elf64_Sym);
            s.names = file + section[section[i].sh_link].sh_offset;
        }
    for (const Elf64_Sym* y = s.first; y != s.last; y++) {
        if (!strcmp(s.names + y->st_name, "cuda_on_cpu_switch")) s.function = y;
        if (!strcmp(s.names + y->st_name, "threadIdx")) s.variable = y;
    }
    return s;
}
inline const Symbols& symbols() {
    static const Symbols s = read_symbols();
    return s;
}

inline const char* name_of(const void* function) {
    const Symbols& s = symbols();
    if (!s.function) return "a kernel";
    for (const Elf64_Sym* y = s.first; y != s.last; y++)
        if (ELF64_ST_TYPE(y->st_info) == STT_FUNC &&
            y->st_value - s.function->st_value == (uint64_t)function - (uint64_t)cuda_on_cpu_switch) {
            const char* name = s.names + y->st_name;
            const char* plain = abi::__cxa_demangle(name, nullptr, nullptr, nullptr);
            return plain ? plain : name;
        }
    return "a kernel";
}

inline void forget_static_shared() {
    static const std::vector<const Elf64_Sym*> variables = [] {
        std::vector<const Elf64_Sym*> found;
        const Symbols& s = symbols();
        if (!s.variable) return found;
        for (const Elf64_Sym* y = s.first; y != s.last; y++) {
            const char* name = s.names + y->st_name;
            if (ELF64_ST_TYPE(y->st_info) == STT_TLS && (!strncmp(name, "_ZZ", 3) || !strncmp(name, "_ZGVZ", 5)))
                found.push_back(y);
        }
        return found;
    }();
    for (const Elf64_Sym* y : variables)
        memset((char*)&threadIdx + (ptrdiff_t)(y->st_value - symbols().variable->st_value), 0xff, y->st_size);
}
#else
inline const char* name_of(const void*) { return "a kernel"; }
inline void forget_static_shared() {}
#endif

} // namespace cuda_on_cpu
