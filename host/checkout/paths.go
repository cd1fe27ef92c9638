package checkout

import (
	"strings"
	"syscall"

	"github.com/artifactfs/artifactfs/worktree"
)

// parentOf returns the directory of a path. It returns "" for a name in the root.
func parentOf(path string) string { return path[:max(strings.LastIndexByte(path, '/'), 0)] }

// baseOf returns the last element of a path.
func baseOf(path string) string { return path[strings.LastIndexByte(path, '/')+1:] }

// isDir reports whether a path was found to be a directory.
func isDir(f worktree.Found) bool { return f.Mode&syscall.S_IFMT == syscall.S_IFDIR }
