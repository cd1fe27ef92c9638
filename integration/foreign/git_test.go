package foreign

import (
	"os"
	"strings"
	"testing"

	"github.com/artifactfs/artifactfs/integration/harness/gittest"
)

// stock returns stock git, with a version of the protocol, as an implementation.
func stock(t *testing.T, git, version string) implementation {
	helper := `credential.helper=!f() { test "$1" = get && echo username=x && echo "password=$AFS_TOKEN"; }; f`
	run := func(a auth, token string, args ...string) (string, error) {
		env := append(gittest.Env(), "AFS_TOKEN="+token)
		base := []string{"-c", "protocol.version=" + version}
		switch a {
		case basic:
			base = append(base, "-c", helper)
		case bearer:
			base = append(base, "-c", "http.extraHeader=Authorization: Bearer "+token)
		case nothing:
		}
		do := func(dir string, args ...string) (string, error) {
			return output(t, dir, env, git, append(base[:len(base):len(base)], args...)...)
		}
		switch args[0] {
		case "clone":
			if len(args) > 3 {
				return do("", "clone", "-q", "--depth", args[3], args[1], args[2])
			}
			return do("", "clone", "-q", args[1], args[2])
		case "commit":
			if err := os.WriteFile(args[1]+"/"+args[2], []byte(args[3]), 0o644); err != nil {
				return "", err
			}
			for _, c := range [][]string{{"add", args[2]}, {"commit", "-q", "-m", "change " + args[2]}} {
				if out, err := do(args[1], c...); err != nil {
					return out, err
				}
			}
			return do(args[1], "rev-parse", "HEAD")
		case "push":
			spec := args[2] + ":refs/heads/" + args[3]
			if len(args) > 4 {
				spec = "+" + spec
			}
			return do(args[1], "push", "-q", "origin", spec)
		default:
			if out, err := do(args[1], "fetch", "-q", "origin"); err != nil {
				return out, err
			}
			return do(args[1], "rev-parse", "origin/main")
		}
	}
	return implementation{run: run}
}

// gits returns functions for the git of this host and for a newer one, by a name for tests.
func gits() map[string]func(t *testing.T) string {
	return map[string]func(t *testing.T) string{
		"git":     func(t *testing.T) string { return program(t, "git") },
		"new git": newGit,
	}
}

func versionOf(t *testing.T, git string) string {
	t.Helper()
	version, err := output(t, "", gittest.Env(), git, "version")
	if err != nil {
		t.Fatal(err)
	}
	return strings.TrimPrefix(version, "git version ")
}

// TestGit runs the suite with the git of this host, with each version of the protocol, and with a newer git.
func TestGit(t *testing.T) {
	t.Parallel()
	for name, find := range gits() {
		t.Run(name, func(t *testing.T) {
			git := find(t)
			t.Log("version", versionOf(t, git))
			protocols := []string{"0", "1", "2"}
			if name == "new git" {
				protocols = []string{"0", "2"} // version 1 differs from 0 by one line
			}
			for _, protocol := range protocols {
				t.Run("protocol "+protocol, func(t *testing.T) { suite(t, stock(t, git, protocol)) })
			}
		})
	}
}
