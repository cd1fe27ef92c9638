package fetch

import (
	"path/filepath"

	"github.com/artifactfs/artifactfs/fetch/bare"
	"github.com/artifactfs/artifactfs/object"
)

// Info describes a store without opening it.
type Info struct {
	URL     string // URL of the store's remote, without secrets
	Format  object.Format
	Objects string // path of the store's object directory
	Sizes   string // path of the file with the table of sizes
}

// Peek reads the description of the store in the directory dir. It returns false if dir contains no store.
func Peek(dir string) (Info, bool) {
	f, url, ok := bare.Peek(dir)
	if !ok {
		return Info{}, false
	}
	return Info{URL: url, Format: f, Objects: bare.New(bare.Config{Dir: dir}).Objects(), Sizes: filepath.Join(dir, "sizes")}, true
}
