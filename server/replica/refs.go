package replica

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/artifactfs/artifactfs/internal/gitcmd"
	"github.com/artifactfs/artifactfs/internal/packedrefs"
	"github.com/artifactfs/artifactfs/internal/refname"
	"github.com/artifactfs/artifactfs/object"
	"github.com/artifactfs/artifactfs/server/objects"
	"github.com/artifactfs/artifactfs/server/records"
)

// manyTags is the number of tags from which on a replica stores the objects that tags point to. For fewer tags, it is faster if git
// reads the tags in each fetch, which takes 80 ms for 10,000 tags.
const manyTags = 200

// parseRefs returns refs in the form of packed-refs.
func parseRefs(format object.Format, refs []records.Ref) ([]packedrefs.Ref, error) {
	packed := make([]packedrefs.Ref, 0, len(refs))
	for _, r := range refs {
		id, err := object.ParseIDOf(format, r.ID)
		if err == nil && !refname.Valid(r.Name) {
			err = errors.New("invalid name")
		}
		if err != nil {
			return nil, fmt.Errorf("write ref %q: %w", r.Name, err)
		}
		packed = append(packed, packedrefs.Ref{Name: r.Name, ID: id})
	}
	return packed, nil
}

// peel sets the field Peeled of tags and returns true, if there are at least manyTags of them. The tags that the replica had before
// are read from its packed-refs, all others by git. An object that cannot be read makes peel return false: a thin repository may lack
// objects.
func (s *Set) peel(ctx context.Context, dir string, format object.Format, refs []packedrefs.Ref) (bool, error) {
	var tags []*packedrefs.Ref
	for i := range refs {
		if strings.HasPrefix(refs[i].Name, "refs/tags/") {
			tags = append(tags, &refs[i])
		}
	}
	if len(tags) < manyTags {
		return false, nil
	}
	known, err := peeledTags(dir)
	if err != nil {
		return false, err
	}
	var unknown []*packedrefs.Ref
	var stdin strings.Builder
	for _, t := range tags {
		if peeled, ok := known[t.ID]; ok {
			t.Peeled = peeled
			continue
		}
		unknown = append(unknown, t)
		stdin.WriteString(t.ID.String() + "^{}\n")
	}
	if len(unknown) == 0 {
		return true, nil
	}
	cmd := s.git.Command(ctx, "--git-dir="+dir, "cat-file", "--batch-check=%(objectname)")
	cmd.Stdin = strings.NewReader(stdin.String())
	out, err := gitcmd.Output(cmd)
	if err != nil {
		return false, fmt.Errorf("peel tags: %w", err)
	}
	lines := strings.Split(strings.TrimSuffix(string(out), "\n"), "\n")
	if len(lines) != len(unknown) {
		return false, fmt.Errorf("peel tags: git has answered %d of %d questions", len(lines), len(unknown))
	}
	for i, t := range unknown {
		id, err := object.ParseIDOf(format, lines[i])
		if err != nil {
			return false, nil // git has printed that the object is missing
		}
		if id != t.ID {
			t.Peeled = id
		}
	}
	return true, nil
}

// peeledTags returns the ids that the tags in the packed-refs of a replica point to, by the ids of the tags.
func peeledTags(dir string) (map[object.ID]object.ID, error) {
	text, err := os.ReadFile(filepath.Join(dir, "packed-refs"))
	if errors.Is(err, fs.ErrNotExist) || err == nil && !packedrefs.TagsPeeled(text) {
		return nil, nil
	}
	if err != nil {
		return nil, objects.Classify(err)
	}
	refs, err := packedrefs.Decode(text)
	if err != nil {
		return nil, err
	}
	known := map[object.ID]object.ID{}
	for _, r := range refs {
		if strings.HasPrefix(r.Name, "refs/tags/") {
			known[r.ID] = r.Peeled
		}
	}
	return known, nil
}
