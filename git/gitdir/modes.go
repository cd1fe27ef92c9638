package gitdir

import (
	"bytes"
	"path/filepath"

	"github.com/go-git/go-git/v5/plumbing/format/config"

	"github.com/artifactfs/artifactfs/internal/disk"
)

// IgnoresModes reports whether the git directory at path has the setting core.fileMode=false.
func IgnoresModes(path string) bool {
	text, err := disk.ReadRegular(filepath.Join(path, "config"), disk.SmallFile)
	c := config.New()
	if err != nil || config.NewDecoder(bytes.NewReader(text)).Decode(c) != nil {
		return false // git commands fail without a configuration
	}
	core := c.Section("core")
	return core.HasOption("fileMode") && !isTrue(core.Option("fileMode"))
}
