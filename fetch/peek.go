package fetch

import (
	"os"
	"path/filepath"
	"strings"

	"github.com/artifactfs/artifactfs/object"
)

// Info describes a store that is not open.
type Info struct {
	URL     string // URL of the store's remote, without secrets
	Format  object.Format
	Objects string // directory
	Sizes   string // file of the table of sizes
}

// Peek reads the description of the store in dir. It returns false if dir contains no store.
func Peek(dir string) (Info, bool) {
	git := filepath.Join(dir, "git")
	f, ok := readFormat(git)
	if !ok {
		return Info{}, false
	}
	i := Info{Format: f, Objects: filepath.Join(git, "objects"), Sizes: filepath.Join(dir, "sizes")}
	config, err := os.ReadFile(filepath.Join(git, "config"))
	if err != nil {
		return i, true
	}
	for line := range strings.Lines(string(config)) { // as makeGitDir wrote it
		if value, ok := strings.CutPrefix(strings.TrimSpace(line), "url = "); ok {
			i.URL = unquoteConfig(value)
			break
		}
	}
	return i, true
}

// unquoteConfig is the inverse of quoteConfig.
func unquoteConfig(value string) string {
	value = strings.TrimSuffix(strings.TrimPrefix(value, `"`), `"`)
	return strings.NewReplacer(`\\`, `\`, `\"`, `"`, `\n`, "\n").Replace(value)
}
