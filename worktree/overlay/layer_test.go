package overlay

import (
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"testing"

	"github.com/artifactfs/artifactfs/integration/harness/await"
)

// TestChanceAgainstModel runs random operations, with closes, kills and compactions between them, and compares with a
// model.
func TestChanceAgainstModel(t *testing.T) {
	for seed := range uint64(8) {
		r := rand.New(rand.NewPCG(seed, 1))
		w := newWorld(t, filepath.Join(t.TempDir(), "overlay"), Options{idle: 4})
		w.mustOpen()
		for range 40 {
			for range 12 {
				if err := w.step(r); err != nil {
					t.Fatal(err)
				}
			}
			switch r.IntN(8) {
			case 0:
				w.mustClose()
				w.sound()
				if rec := w.mustOpen(); rec.Start != Clean || len(rec.Problems) > 0 {
					t.Fatalf("recovery after Close: got %+v", rec)
				}
			case 1, 2, 3:
				w.kill()
				if rec := w.mustOpen(); rec.Start != Killed || len(rec.Problems) > 0 {
					t.Fatalf("recovery after a kill: got %+v", rec)
				}
			case 4:
				if err := w.l.janitor.compact(); err != nil {
					t.Fatal(err)
				}
			}
			w.compare()
			if t.Failed() {
				t.Fatalf("seed %d", seed)
			}
		}
		w.mustClose()
		w.sound()
	}
}

// TestLongLogIsCompacted changes one file so often that nearly all records of the log are obsolete.
func TestLongLogIsCompacted(t *testing.T) {
	w := opened(t, Options{})
	w.must(w.create("f"))
	for i := 0; w.l.wal.Size() <= longLog; i++ {
		w.must(w.l.Update(func(tx *Tx) error {
			tx.SetXattr(w.files["f"].node, "user.n", fmt.Appendf(nil, "%04000d", i))
			return nil
		}))
	}
	await.Until(t, "the log is compacted", func() bool { return w.l.wal.Size() < longLog/100 })
	w.kill()
	w.mustOpen()
	w.compare()
}
