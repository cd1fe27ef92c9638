package checkout

import (
	"strings"
	"syscall"

	"github.com/artifactfs/artifactfs/worktree"
)

// baseOf returns the last element of a path.
func baseOf(path string) string { return path[strings.LastIndexByte(path, '/')+1:] }

// isDir reports whether the path that was looked up is a directory.
func isDir(f worktree.Found) bool { return f.Mode&syscall.S_IFMT == syscall.S_IFDIR }
