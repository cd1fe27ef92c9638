package fetch

import (
	"testing"

	"github.com/artifactfs/artifactfs/git/object"
)

// BenchmarkOpen reads files that are on this host, as a mount does.
func BenchmarkOpen(b *testing.B) {
	p := newProvided(b, object.SHA1, 0)
	blob := p.files[0]
	for b.Loop() {
		c, err := p.view.Open(b.Context(), blob)
		if err != nil {
			b.Fatal(err)
		}
		c.Release()
	}
}

// BenchmarkSize looks up the size of a file that is on this host.
func BenchmarkSize(b *testing.B) {
	p := newProvided(b, object.SHA1, 0)
	c, err := p.view.Open(b.Context(), p.files[0])
	if err != nil {
		b.Fatal(err)
	}
	c.Release()
	for b.Loop() {
		if _, ok := p.view.KnownSize(p.files[0]); !ok {
			b.Fatal("the size is not known")
		}
	}
}

// BenchmarkTree lists a directory that is on this host.
func BenchmarkTree(b *testing.B) {
	p := newProvided(b, object.SHA1, 0)
	for b.Loop() {
		if _, err := p.view.Tree(b.Context(), p.view.root); err != nil {
			b.Fatal(err)
		}
	}
}
