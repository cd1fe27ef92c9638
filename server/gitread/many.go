package gitread

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"

	"github.com/artifactfs/artifactfs/git/object"
)

// Content is an object with its contents.
type Content struct {
	Object
	Bytes []byte // nil if the object is larger than the limit
}

// Contents reads objects, each of which is named by an id, or by the id of a commit or tree, a colon and a path. It calls do with each of
// them in the order of their names. An object that does not exist has the ID "". Contents that are larger than limit are not read.
func (r Repo) Contents(ctx context.Context, names []string, limit int64, do func(i int, c Content)) error {
	done := 0 // a process of the pool may have ended; then the rest is read by another one
	return r.use(ctx, func(b *batch) (bool, error) {
		for ; done < len(names); done++ {
			c, err := b.small(names[done], limit)
			if err != nil {
				return false, err
			}
			do(done, c)
		}
		return false, nil
	})
}

// small reads an object that is not larger than limit.
func (b *batch) small(name string, limit int64) (Content, error) {
	id, path, inTree := strings.Cut(name, ":")
	if !object.ValidID(id) || inTree && !validPath(path) {
		return Content{}, nil
	}
	o, err := b.info(name)
	switch {
	case errors.Is(err, ErrNotFound):
		return Content{}, nil
	case err != nil || o.Size > limit:
		return Content{Object: o}, err
	}
	if o, err = b.contents(o.ID); err != nil {
		return Content{}, err
	}
	c := Content{o, make([]byte, o.Size)}
	if _, err := io.ReadFull(b.out, c.Bytes); err != nil {
		return Content{}, b.failed(err)
	}
	return c, b.finish()
}

// Step is a commit of a session: its id, and the time of the committer.
type Step struct {
	ID   string
	Time time.Time
}

// maxSteps is the maximum number of commits that Steps returns.
const maxSteps = 10_000

// Steps returns the commits that lead to tips by first parents, the newest first, without those that the commit base reaches and those
// from before the time began. Ids that do not exist are ignored. There are at most 10,000.
func (r Repo) Steps(ctx context.Context, tips []string, base string, began time.Time) ([]Step, error) {
	if len(tips) == 0 {
		return nil, nil
	}
	args := append([]string{"log", "--first-parent", "--ignore-missing", "--no-show-signature", "--max-count=" + strconv.Itoa(maxSteps),
		"--format=tformat:%H %ct", "--stdin"}, since(began)...)
	in := strings.Join(tips, "\n") + "\n"
	if object.ValidID(base) {
		in += "^" + base + "\n"
	}
	cmd := r.ofCommits(ctx, args...)
	cmd.Stdin = strings.NewReader(in)
	out, _, err := output(cmd, maxMessages)
	if err != nil {
		return nil, err
	}
	var list []Step
	for line := range strings.Lines(string(out)) {
		id, text, _ := strings.Cut(strings.TrimSuffix(line, "\n"), " ")
		seconds, err := parseTime(text)
		if err != nil {
			return nil, fmt.Errorf("parse commit %.80q: %w", id, err)
		}
		list = append(list, Step{id, time.Unix(seconds, 0).UTC()})
	}
	return list, nil
}
