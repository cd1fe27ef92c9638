package read

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/artifactfs/artifactfs/git/gitcmd"
	"github.com/artifactfs/artifactfs/git/merge"
	"github.com/artifactfs/artifactfs/git/object"
)

// Commit is a commit in the form of the API.
type Commit struct {
	Hash        string   `json:"hash"`
	TreeHash    string   `json:"treeHash"`
	Message     string   `json:"message"` // without its last newline
	Author      Person   `json:"author"`
	Committer   Person   `json:"committer"`
	Parents     []string `json:"parents"`
	AuthoredAt  int64    `json:"authoredAt"` // unix time
	CommittedAt int64    `json:"committedAt"`
}

// Person is the author or committer of a commit.
type Person struct {
	Name  string `json:"name"`
	Email string `json:"email"`
}

// commitFormat makes git log write commitFields fields for each commit, each of which ends with NUL.
const (
	commitFormat = "--format=tformat:%H%x00%T%x00%P%x00%an%x00%ae%x00%at%x00%cn%x00%ce%x00%ct%x00%B"
	commitFields = 10
)

// MaxMessages is the maximum number of bytes of the output of git log that are used. Log returns fewer commits if there
// are more.
const MaxMessages = 16 << 20

// maxSkip is the maximum number of commits that git log skips.
const maxSkip = 10_000

// Log returns up to limit commits from a commit on, after skipping offset of them. It follows first parents only. It
// returns ErrNotFound if there is no such commit.
func (r Repo) Log(ctx context.Context, name string, offset, limit int) ([]Commit, error) {
	from := func(revision string) ([]Commit, error) {
		skip := offset
		if skip > maxSkip {
			start, err := r.skip(ctx, revision, skip)
			if start == "" || err != nil {
				return []Commit{}, err
			}
			revision, skip = start, 0
		}
		page := []string{"--skip=" + strconv.Itoa(skip), "--max-count=" + strconv.Itoa(limit)}
		return r.log(ctx, append(page, "--first-parent", "--end-of-options", revision, "--")...)
	}
	// The first candidate is nearly always the right one. If it is not, git fails, and the name is resolved by another
	// process.
	if names := r.candidates(name); len(names) > 0 {
		if list, err := from(names[0]); !gitcmd.Exited(err, 128) {
			return list, err
		}
	}
	id, err := r.Resolve(ctx, name)
	if err != nil {
		return nil, err
	}
	return from(id)
}

// skip returns the id of the commit that follows a revision after offset first parents, "" if there is none. Unlike git
// log, rev-list does not keep the commits in memory that it skips.
func (r Repo) skip(ctx context.Context, revision string, offset int) (string, error) {
	out, err := gitcmd.Output(r.Command(ctx, "rev-list", "--first-parent", "--skip="+strconv.Itoa(offset), "--max-count=1",
		"--end-of-options", revision, "--"))
	return strings.TrimSpace(string(out)), err
}

func (r Repo) log(ctx context.Context, args ...string) ([]Commit, error) {
	args = append([]string{"log", "-z", commitFormat, "--encoding=UTF-8", "--no-show-signature"}, args...)
	out, cut, err := Output(r.OfCommits(ctx, args...), MaxMessages)
	if err != nil {
		return nil, err
	}
	text := string(out)
	if cut { // the last commit may be incomplete
		fields := strings.Split(text, "\x00")
		text = strings.Join(fields[:(len(fields)-1)/commitFields*commitFields], "\x00")
	}
	return parseLog(text)
}

// Commit returns a commit by its id.
func (r Repo) Commit(ctx context.Context, id string) (Commit, error) {
	list, err := r.log(ctx, "--max-count=1", "--end-of-options", id, "--")
	if err == nil && len(list) == 1 && list[0].Hash == id {
		return list[0], nil
	}
	if err != nil && !gitcmd.Exited(err, 128) || ctx.Err() != nil {
		return Commit{}, err
	}
	// git log also fails for objects that do not exist, and follows tags.
	o, missing := r.info(ctx, id)
	switch {
	case missing != nil:
		return Commit{}, missing
	case o.Type != "commit":
		return Commit{}, &TypeError{id, "commit", o.Type}
	case err != nil:
		return Commit{}, err
	}
	return Commit{}, fmt.Errorf("read commit %s: git returned another one", id)
}

// MergeBase returns the best common ancestor of commits, which are named by their ids, and "" if there is none. It
// returns ErrNotFound if one of the commits, or a commit between them, is missing.
func (r Repo) MergeBase(ctx context.Context, commits ...string) (string, error) {
	for _, id := range commits {
		if !object.ValidID(id) {
			return "", fmt.Errorf("find common ancestor of %.80q: %w", id, ErrNotFound)
		}
	}
	base, err := merge.Base(r.git().Runner(ctx), commits...)
	switch {
	case ctx.Err() != nil:
		return "", context.Cause(ctx)
	case gitcmd.Exited(err, 128):
		return "", fmt.Errorf("find common ancestor: %w: %w", ErrNotFound, err)
	case err != nil || base.IsZero():
		return "", err
	}
	return base.String(), nil
}

// parseLog parses the output of git log with commitFormat and -z.
func parseLog(text string) ([]Commit, error) {
	list := []Commit{}
	if text == "" {
		return list, nil
	}
	fields := strings.Split(strings.TrimSuffix(text, "\x00"), "\x00")
	if len(fields)%commitFields != 0 {
		return nil, fmt.Errorf("parse commits: got %d fields, want a multiple of %d", len(fields), commitFields)
	}
	for ; len(fields) > 0; fields = fields[commitFields:] {
		// A commit with an invalid time has an empty field; git itself shows it as 1970.
		authored, err1 := parseTime(fields[5])
		committed, err2 := parseTime(fields[8])
		if err := errors.Join(err1, err2); err != nil {
			return nil, fmt.Errorf("parse commit %.80q: %w", fields[0], err)
		}
		list = append(list, Commit{Hash: fields[0], TreeHash: fields[1],
			Parents: append([]string{}, strings.Fields(fields[2])...),
			Author:  Person{fields[3], fields[4]}, AuthoredAt: authored, Committer: Person{fields[6], fields[7]},
			CommittedAt: committed,
			Message:     strings.TrimSuffix(fields[9], "\n")})
	}
	return list, nil
}

func parseTime(text string) (int64, error) {
	if text == "" {
		return 0, nil
	}
	return strconv.ParseInt(text, 10, 64)
}
