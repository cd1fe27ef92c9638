package object

import (
	"bytes"
	"os"
	"os/exec"
	"strings"
	"testing"
)

var formats = []Format{SHA1, SHA256}

// repo is an empty git repository, in which the tests run git to compare results.
type repo struct {
	t   testing.TB
	dir string
}

func newRepo(t testing.TB, f Format) repo {
	t.Helper()
	r := repo{t, t.TempDir()}
	r.git(nil, "init", "-q", "--bare", "--object-format="+f.String(), ".")
	return r
}

// try runs git and returns its output, even if git fails.
func (r repo) try(stdin []byte, args ...string) (stdout, stderr string, err error) {
	cmd := exec.Command("git", append([]string{"-C", r.dir}, args...)...)
	cmd.Env = append(os.Environ(), "GIT_CONFIG_GLOBAL=/dev/null", "GIT_CONFIG_SYSTEM=/dev/null", "LC_ALL=C",
		"GIT_AUTHOR_NAME=A", "GIT_AUTHOR_EMAIL=a@example.org", "GIT_AUTHOR_DATE=1700000000 +0000",
		"GIT_COMMITTER_NAME=A", "GIT_COMMITTER_EMAIL=a@example.org", "GIT_COMMITTER_DATE=1700000001 +0130")
	cmd.Stdin = bytes.NewReader(stdin)
	var out, errs strings.Builder
	cmd.Stdout, cmd.Stderr = &out, &errs
	err = cmd.Run()
	return out.String(), errs.String(), err
}

func (r repo) git(stdin []byte, args ...string) string {
	r.t.Helper()
	out, errs, err := r.try(stdin, args...)
	if err != nil {
		r.t.Fatalf("git %s: %v\n%s", strings.Join(args, " "), err, errs)
	}
	return out
}

// id runs git and returns the object id that it prints.
func (r repo) id(stdin []byte, args ...string) ID {
	r.t.Helper()
	id, err := ParseID(strings.TrimSpace(r.git(stdin, args...)))
	if err != nil {
		r.t.Fatal(err)
	}
	return id
}
