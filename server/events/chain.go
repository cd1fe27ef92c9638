package events

import (
	"bytes"
	"path/filepath"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/artifactfs/artifactfs/git/object"
	"github.com/artifactfs/artifactfs/git/odb"
	"github.com/artifactfs/artifactfs/server/records"
)

// maxPlain is the maximum size, in bytes, of a commit that chain reads.
const maxPlain = 64 << 10

// chain returns the same commits as walk, but without starting a process. It supports only simple pushes: the commits
// are in packs of the git directory itself, first parents lead to the old commit, and git log would print all parts of
// the commits unchanged. For other pushes it returns false.
func chain(dir string, u records.RefUpdate) (Commits, bool) {
	format := object.SHA1
	if len(u.New) == 64 {
		format = object.SHA256
	}
	id, err := object.ParseIDOf(format, u.New)
	if err != nil || u.Creates() {
		return Commits{}, false
	}
	packs, err := odb.Open(filepath.Join(dir, "objects"), format)
	if err != nil {
		return Commits{}, false
	}
	defer packs.Close()
	var c Commits
	// git log would list the same commits, because each commit on the way to the old commit is a descendant of it.
	for id.String() != u.Old {
		if c.Total == maxCommits {
			return Commits{}, false
		}
		kind, content, err := packs.Get(id, maxPlain)
		if err != nil || kind != object.Commit {
			return Commits{}, false
		}
		info, err := object.ParseCommit(format, content)
		if err != nil || len(info.Parents) == 0 {
			return Commits{}, false
		}
		commit, ok := plainCommit(id.String(), content)
		if !ok {
			return Commits{}, false
		}
		for _, p := range info.Parents {
			commit.Parents = append(commit.Parents, p.String())
		}
		commit.Timestamp = *moment(time.Unix(clamp(info.Committed.Unix()), 0))
		c.List = append(c.List, commit)
		c.Total++
		id = info.Parents[0]
	}
	return c, true
}

// plainCommit returns the persons and the message of a commit. It returns false if git log would change a part of the
// commit when it prints the commit.
func plainCommit(id string, content []byte) (Commit, bool) {
	header, message, ok := strings.Cut(string(content), "\n\n")
	if !ok || !utf8.Valid(content) || bytes.IndexByte(content, 0) >= 0 || strings.Contains(header, "\nencoding ") {
		return Commit{}, false
	}
	c := Commit{ID: id}
	for _, p := range []struct {
		key  string
		into *Person
	}{{"\nauthor ", &c.Author}, {"\ncommitter ", &c.Committer}} {
		_, rest, found := strings.Cut(header, p.key)
		line, _, _ := strings.Cut(rest, "\n")
		name, rest, hasName := strings.Cut(line, " <")
		email, date, hasEmail := strings.Cut(rest, "> ")
		if !found || !hasName || !hasEmail || strings.ContainsAny(name+email+date, "<>") ||
			name != strings.TrimSpace(name) || email != strings.TrimSpace(email) || len(strings.Fields(date)) != 2 {
			return Commit{}, false
		}
		*p.into = personOf(name, email)
	}
	c.Message, c.MessageTruncated = truncate(strings.TrimSuffix(message, "\n"))
	return c, true
}
