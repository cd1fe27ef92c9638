package promisor

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/artifactfs/artifactfs/git/object"
)

// TestLongOutputEndsGit checks that git is ended when it has printed more than is read, and does not wait for a reader.
func TestLongOutputEndsGit(t *testing.T) {
	_, s := served(t, object.SHA1)
	c := newClone(t, s, "r.git")
	blob := c.try(strings.Repeat("a", maxOutput+1<<20), "hash-object", "-w", "--stdin")
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	l := c.server.oracle.git
	if err := l.update(ctx); err != nil {
		t.Fatal(err)
	}
	out, err := l.output(ctx, "cat-file", "blob", strings.TrimSpace(blob.out))
	if err != nil || len(out) != maxOutput {
		t.Errorf("output of a git command that prints more than is read: got %d bytes, %v; want %d bytes, no error",
			len(out), err, maxOutput)
	}
}
