// Package index reads and writes git's index, with everything in it that lets `git status` on an untouched working
// tree look at nothing: stat data, the trees its entries stand for (TREE), what a file system monitor vouches for
// (FSMN), and that there are no untracked files (UNTR). Formats are those of git's gitformat-index.
//
// It is pure: entries in, bytes out, and back.
package index

// maxPath bounds a path in bytes, as Linux does (PATH_MAX).
const maxPath = 4096

// Version is the version of the indexes that are made new.
const Version = 2
