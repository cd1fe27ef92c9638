package fetch

import (
	"path/filepath"

	"github.com/artifactfs/artifactfs/fetch/bare"
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
	f, url, ok := bare.Peek(dir)
	if !ok {
		return Info{}, false
	}
	return Info{URL: url, Format: f, Objects: bare.New(bare.Config{Dir: dir}).Objects(), Sizes: filepath.Join(dir, "sizes")}, true
}
