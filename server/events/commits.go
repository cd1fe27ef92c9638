package events

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"

	"github.com/artifactfs/artifactfs/git/gitcmd"
	"github.com/artifactfs/artifactfs/server/records"
)

const (
	maxCommits  = 20   // maximum number of commits in an event; counting stops at one more
	maxMessage  = 4096 // maximum number of characters of a message
	maxPerson   = 256  // maximum number of characters of a name or an address
	maxBranches = 32   // maximum number of branches of one push whose commits are read
	maxField    = 4 * (maxMessage + 1)
)

// Commit is a commit in an event.
type Commit struct {
	ID               string   `json:"id"`
	Message          string   `json:"message"`
	MessageTruncated bool     `json:"messageTruncated"`
	Timestamp        string   `json:"timestamp"` // time at which the commit was committed
	Author           Person   `json:"author"`
	Committer        Person   `json:"committer"`
	Parents          []string `json:"parents"`
}

// Person is the author or the committer of a commit.
type Person struct {
	Name  string `json:"name"`
	Email string `json:"email"`
}

// personOf returns a person whose name and address are cut. Anybody who may push chooses them, and each event has many.
func personOf(name, email string) Person {
	return Person{first(name, maxPerson), first(email, maxPerson)}
}

// Commits are the commits that an update of a branch has added, the newest first.
type Commits struct {
	List      []Commit
	Total     int // number of commits; maxCommits+1 stands for more than maxCommits
	Truncated bool
}

// Walk reads the commits that the updates of branches add, from the git directory dir, which must have all objects. It
// follows first parents only. It is called before the transaction of a push, because it starts git. The result maps
// each branch to its commits. Other refs and removed branches are missing in it. A branch whose commits were not read
// has an empty entry that is marked as truncated: the branches after the first 32, and those at which git has failed.
// The error is the first failure of git.
func Walk(ctx context.Context, git gitcmd.Confined, dir string,
	updates []records.RefUpdate) (map[string]Commits, error) {
	all := map[string]Commits{}
	var first error
	read := 0
	for _, u := range updates {
		if !isBranch(u.Name) || u.Removes() {
			continue
		}
		if read++; read > maxBranches {
			all[u.Name] = Commits{Truncated: true}
			continue
		}
		c, ok := chain(dir, u)
		var err error
		if !ok {
			c, err = walk(ctx, git, dir, u)
		}
		if err != nil {
			c = Commits{Truncated: true}
			if first == nil {
				first = fmt.Errorf("read the commits of %s: %w", u.Name, err)
			}
		}
		all[u.Name] = c
	}
	return all, first
}

// walk reads the commits of an update with git log.
func walk(ctx context.Context, git gitcmd.Confined, dir string, u records.RefUpdate) (c Commits, err error) {
	args := []string{"log", "-z", "--first-parent", "--no-show-signature", "--no-color", "--no-decorate",
		"--no-notes", "--no-mailmap", "--encoding=UTF-8", "--max-count=" + strconv.Itoa(maxCommits+1),
		"--format=tformat:%H%x00%P%x00%ct%x00%an%x00%ae%x00%cn%x00%ce%x00%B", u.New}
	if !u.Creates() {
		args = append(args, "^"+u.Old)
	}
	err = gitcmd.Stream(git.ForCommits().In(dir).Command(ctx, append(args, "--")...), func(out io.Reader) (err error) {
		c, err = parseLog(out)
		return err
	})
	if err != nil {
		return Commits{}, err
	}
	return c, nil
}

var errLog = errors.New("invalid output of git log")

// parseLog parses records of eight fields, each of which ends with a zero byte. It keeps at most maxField bytes of a
// field, so that its memory is bounded whatever a commit contains.
func parseLog(in io.Reader) (Commits, error) {
	r := bufio.NewReader(in)
	var c Commits
	for {
		var f [8]string
		cut := false
		for i := range f {
			text, longer, err := field(r)
			if errors.Is(err, io.EOF) && i == 0 && text == "" {
				return c, nil
			}
			if err != nil {
				return Commits{}, errLog
			}
			f[i], cut = text, longer // in the last field, the message, cut means that the message is incomplete
		}
		seconds, err := strconv.ParseInt(f[2], 10, 64)
		if err != nil && !errors.Is(err, strconv.ErrRange) || f[0] == "" {
			return Commits{}, errLog
		}
		if c.Total++; c.Total > maxCommits {
			c.Total, c.Truncated = maxCommits+1, true
			continue
		}
		message, shorter := truncate(strings.TrimSuffix(f[7], "\n"))
		c.List = append(c.List, Commit{
			ID: f[0], Message: message, MessageTruncated: cut || shorter, Timestamp: *moment(time.Unix(clamp(seconds), 0)),
			Author: personOf(f[3], f[4]), Committer: personOf(f[5], f[6]), Parents: strings.Fields(f[1]),
		})
	}
}

// clamp limits a time to years of four digits, because the time format of events allows no others.
func clamp(seconds int64) int64 { return min(max(seconds, 0), 253402300799) }

// field reads up to the next zero byte. longer reports whether the field had more than maxField bytes and was cut.
func field(r *bufio.Reader) (text string, longer bool, err error) {
	var b []byte
	for {
		part, err := r.ReadSlice(0)
		end := err == nil
		if end {
			part = part[:len(part)-1]
		}
		room := maxField - len(b)
		longer = longer || len(part) > room
		b = append(b, part[:min(len(part), room)]...)
		if end || !errors.Is(err, bufio.ErrBufferFull) {
			return strings.ToValidUTF8(string(b), "\uFFFD"), longer, err
		}
	}
}

// truncate returns the first maxMessage characters of a text, and whether the text is longer.
func truncate(text string) (string, bool) {
	cut := first(text, maxMessage)
	return cut, len(cut) < len(text)
}

// first returns the first n characters of a text.
func first(text string, n int) string {
	if len(text) <= n {
		return text
	}
	for i := range text {
		if n == 0 {
			return text[:i]
		}
		n--
	}
	return text
}
