// Package index reads and writes git's index. It supports the extensions with which `git status` need not access any
// file of an unchanged working tree: the cache tree (TREE), the state of the file system monitor (FSMN) and the
// untracked cache (UNTR). The formats are those of gitformat-index(5). The package accesses no files: it converts
// between entries and bytes.
//
// # Version
//
// New indexes have version 4, which stores each path as its difference from the previous one. git since 1.8, libgit2,
// gitoxide and go-git can read this version. For 149,957 files in 17,479 directories the index has 13.3 MB, compared
// with 22.1 MB in version 2. `git status` takes 71 ms with git 2.39 and 60 ms with git 2.55 (with version 2: 110 and 66
// ms; the best of 15 runs). Rewriting the index, as commands that change it do, takes 141 and 131 ms (with version 2:
// 209 and 140 ms). git keeps the version of an existing index.
//
// An index of more than 10,000 entries has two more extensions, with the end of the entries (EOIE) and with the offsets
// at which threads of git can start to read (IEOT). They take about 200 bytes. git uses them if index.threads is set.
// artifactfs does not set it, because the threads save time on an idle machine but lose as much on a busy one.
//
// # Ignore files
//
// UNTR contains an id for each ignore file. When git searches for untracked files, it opens every ignore file to
// compare the contents with this id. In a working tree that fetches files on demand, this would fetch all ignore files.
// If a directory is recorded as having no ignore file, git relies on this until something changes in the directory, or
// anywhere below it, because git lists a directory without tracked files as one name. Therefore an ignore file whose
// contents were not fetched is recorded as missing. After a change git reads the ignore files in the directories above
// the changed path, finds the new ones, and searches everything below the topmost of them. The result is correct, and
// git does this only once. For the ignore file of the root it would take long, so the contents of this file should be
// fetched before.
package index

// Version is the version of new indexes.
const Version = 4

// maxPath is the maximum length of a path in bytes, as in Linux (PATH_MAX).
const maxPath = 4096
