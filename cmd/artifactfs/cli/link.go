package cli

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/artifactfs/artifactfs/control"
	"github.com/artifactfs/artifactfs/control/sessionlink"
	"github.com/artifactfs/artifactfs/session"
	"github.com/spf13/cobra"
)

// AtLink fills a mount request from a link. The mount then resumes the session in the link, or shows a checkpoint of
// that session. AtLink returns false if word is not a link, and an error if a flag contradicts the link.
func AtLink(cmd *cobra.Command, r *control.MountRequest, word string) (link bool, err error) {
	l, link, err := LinkIn(cmd.Name(), word)
	if err != nil || !link {
		return false, err
	}
	for _, flag := range []string{"session", "session-remote", "at", "ref"} {
		if f := cmd.Flags().Lookup(flag); f != nil && f.Changed {
			return false, Usage(cmd, errors.New("link and --"+flag+" exclude each other: the link already names it"))
		}
	}
	r.Session, r.SessionOptions.Remote, r.At = l.Session, l.Remote, l.Checkpoint
	return true, nil
}

// LinkIn parses a word as a link. An existing path is never a link, whatever characters it contains.
func LinkIn(verb, word string) (sessionlink.Link, bool, error) {
	if IsPath(word) {
		if _, err := os.Lstat(word); err == nil {
			return sessionlink.Link{}, false, nil
		}
	}
	l, ok, err := sessionlink.Parse(word)
	if e := control.AsError(err); e != nil {
		e.Verb = verb
		return l, false, e
	}
	if ok {
		l.Remote, err = FarRemote(verb, l.Remote)
	}
	return l, ok, err
}

// NamesCheckpoint reports whether word must be the name of a checkpoint, because it cannot be the name of anything
// else.
func NamesCheckpoint(word string) bool {
	_, err := session.ParseCheckpointID(word)
	return err == nil || strings.HasPrefix(word, "@")
}

// FarRemote checks remote, the session remote on which sessions are looked up. It returns an absolute path if remote is
// a path, and "" if remote is "".
func FarRemote(verb, remote string) (string, error) {
	switch remote {
	case "":
		return "", nil
	case control.RemoteEmbedded, control.RemoteOrigin, control.RemoteNone:
		return "", &control.Error{Code: control.ExitUsage, Verb: verb, Object: "--session-remote " + remote,
			Cause: "this command needs the URL or path of a git repository", Hint: "omit the flag for the sessions of this host"}
	}
	if !IsPath(remote) {
		return remote, nil
	}
	abs, err := filepath.Abs(remote)
	if err != nil {
		return "", fmt.Errorf("%s: %w", verb, err)
	}
	return abs, nil
}
