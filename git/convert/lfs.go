package convert

import (
	"encoding/hex"

	"github.com/artifactfs/artifactfs/internal/lazy"
)

// maxPointer is the size in bytes below which git-lfs accepts a blob as a pointer.
const maxPointer = 1 << 10

// pointer matches a git-lfs pointer without extensions (git-lfs, docs/spec.md).
var pointer = lazy.Regexp(`^version https://(?:git-lfs|hawser)\.github\.com/spec/v1\n` +
	`oid sha256:([0-9a-f]{64})\nsize [0-9]+\n?$`)

// LFSPointer returns the SHA-256 of the contents that a git-lfs pointer names. It returns false if blob is not such a
// pointer.
func LFSPointer(blob []byte) (sum [32]byte, ok bool) {
	m := pointer().FindSubmatch(blob[:min(len(blob), maxPointer)])
	if m == nil || len(blob) >= maxPointer {
		return sum, false
	}
	_, err := hex.Decode(sum[:], m[1])
	return sum, err == nil
}

// leftOut matches the settings by which git-lfs leaves pointers in the working tree, or converts contents in another
// way.
var leftOut = lazy.Regexp(`(?i)fetchinclude|fetchexclude|lfs(\.| *")extension\.`)

// LeavesOutLFS reports whether a configuration file, or the name of a setting, may contain a setting by which git-lfs
// leaves some pointers in the working tree, or converts contents in another way.
func LeavesOutLFS(config []byte) bool { return leftOut().Match(config) }
