package odb

import (
	"bytes"
	"context"
	"os"
	"path/filepath"
	"testing"

	"github.com/artifactfs/artifactfs/object"
)

// TestIngest reads every kind of pack git makes; git then judges what was written.
func TestIngest(t *testing.T) {
	forEachFormat(t, func(t *testing.T, f object.Format) {
		dir, want := fixture(t, f)
		for name, args := range map[string][]string{
			"ofs":   {"--delta-base-offset"},
			"ref":   nil,
			"plain": {"--depth=0", "--window=0"},
		} {
			t.Run(name, func(t *testing.T) {
				pack := packOf(t, dir, args...)
				to := newRepo(t, f)
				s := open(t, filepath.Join(to, "objects"), f)
				seen := 0
				res, err := s.Ingest(context.Background(), bytes.NewReader(pack), IngestOptions{Promisor: true, MaxObjectSize: noLimit},
					func(id object.ID, typ object.Type, data []byte) {
						seen++
						c := want[id]
						if typ != c.typ || !bytes.Equal(data, c.data) {
							t.Fatalf("told of %s as %s of %d bytes", id, typ, len(data))
						}
						if got, data, err := s.Get(id, noLimit); err != nil || got != typ || !bytes.Equal(data, c.data) {
							t.Fatalf("Get(%s) while streaming: %v", id, err)
						}
					})
				if err != nil {
					t.Fatal(err)
				}
				if seen != len(want) || res.Objects != len(want) || res.Bytes != int64(len(pack)) {
					t.Fatalf("%+v, %d told, want %d objects in %d bytes", res, seen, len(want), len(pack))
				}
				want.check(t, s)
				want.check(t, open(t, filepath.Join(to, "objects"), f))

				path := filepath.Join(to, "objects", "pack", res.Name)
				git(t, to, nil, "verify-pack", path+".idx")
				mine, err := os.ReadFile(path + ".idx")
				if err != nil {
					t.Fatal(err)
				}
				git(t, to, nil, "index-pack", "--strict", "-o", filepath.Join(to, "git.idx"), path+".pack")
				theirs, err := os.ReadFile(filepath.Join(to, "git.idx"))
				if err != nil || !bytes.Equal(mine, theirs) {
					t.Fatalf("index differs from git's: %v", err)
				}
				git(t, to, nil, "fsck", "--full", "--strict")
				if _, err := os.Stat(path + ".promisor"); err != nil {
					t.Fatal(err)
				}
			})
		}
	})
}
