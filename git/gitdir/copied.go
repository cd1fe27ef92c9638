package gitdir

import (
	"bytes"
	"strings"

	"github.com/go-git/go-git/v5/plumbing/format/config"

	"github.com/artifactfs/artifactfs/git/gitdir/fsmonitor/query"
)

// HiddenInCopies reports whether copies of a git directory must omit the entry called name in its root. These entries
// are sockets, settings and programs of the mount. They would be wrong in a copy: the mount's file system monitor does
// not know the files beside the copy.
func HiddenInCopies(name string) bool {
	return strings.HasPrefix(name, "artifactfs") || strings.HasPrefix(name, query.Socket)
}

// CopiedConfig returns the configuration for a copy of the git directory with the configuration text. It names no
// working tree, so that git uses the directory that contains the copy, and not the mount.
func CopiedConfig(text []byte) ([]byte, error) {
	c := config.New()
	if err := config.NewDecoder(bytes.NewReader(text)).Decode(c); err != nil {
		return nil, err
	}
	core := c.Section("core")
	core.RemoveOption("worktree")
	// The index of the mount has an untracked cache, for which git prints a warning in another directory.
	core.SetOption("untrackedCache", "false")
	var b bytes.Buffer
	err := config.NewEncoder(&b).Encode(c)
	return b.Bytes(), err
}
