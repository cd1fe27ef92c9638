package gitdir

import (
	"bytes"
	"path/filepath"
	"strings"

	"github.com/go-git/go-git/v5/plumbing/format/config"

	"github.com/artifactfs/artifactfs/internal/disk"
)

// ComparesLess reports whether the configuration of the git directory at path has a setting by which git calls files
// unchanged that have changed in mode, type or time.
func ComparesLess(path string) bool {
	text, err := disk.ReadRegular(filepath.Join(path, "config"), disk.SmallFile)
	c := config.New()
	if err != nil || config.NewDecoder(bytes.NewReader(text)).Decode(c) != nil {
		return false // git commands fail without a configuration
	}
	core := c.Section("core")
	for _, key := range []string{"fileMode", "symlinks", "trustctime"} {
		if core.HasOption(key) && !isTrue(core.Option(key)) {
			return true
		}
	}
	return strings.EqualFold(core.Option("checkStat"), "minimal")
}
