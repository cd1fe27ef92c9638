package gitread

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/artifactfs/artifactfs/git/object"
	"github.com/artifactfs/artifactfs/git/read"
)

// Step is a commit of a session: its id, and the time of the committer.
type Step struct {
	ID   string
	Time time.Time
}

// maxSteps is the maximum number of commits that Steps returns.
const maxSteps = 10_000

// Steps returns the commits that lead to tips by first parents, the newest first, without those that the commit base
// reaches and those from before the time began. Ids that do not exist are ignored. There are at most 10,000.
func (r Repo) Steps(ctx context.Context, tips []string, base string, began time.Time) ([]Step, error) {
	if len(tips) == 0 {
		return nil, nil
	}
	args := append([]string{"log", "--first-parent", "--ignore-missing", "--no-show-signature",
		"--max-count=" + strconv.Itoa(maxSteps),
		"--format=tformat:%H %ct", "--stdin"}, since(began)...)
	in := strings.Join(tips, "\n") + "\n"
	if object.ValidID(base) {
		in += "^" + base + "\n"
	}
	cmd := r.OfCommits(ctx, args...)
	cmd.Stdin = strings.NewReader(in)
	out, _, err := read.Output(cmd, read.MaxMessages)
	if err != nil {
		return nil, err
	}
	var list []Step
	for line := range strings.Lines(string(out)) {
		id, text, _ := strings.Cut(strings.TrimSuffix(line, "\n"), " ")
		seconds, err := strconv.ParseInt(text, 10, 64)
		if err != nil {
			return nil, fmt.Errorf("parse commit %.80q: %w", id, err)
		}
		list = append(list, Step{id, time.Unix(seconds, 0).UTC()})
	}
	return list, nil
}
