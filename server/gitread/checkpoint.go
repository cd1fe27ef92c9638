package gitread

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/artifactfs/artifactfs/session"
)

// ErrCheckpointName means that a text cannot be the name of a checkpoint.
var ErrCheckpointName = errors.New("invalid name of a checkpoint")

// checkpointTrailer is the trailer with the id of a checkpoint.
const checkpointTrailer = "Afs-Checkpoint"

// Checkpoint returns the commit of a checkpoint of a session of this program, as in doc/sessions.md. refs are the refs of the
// repository. name is the complete id of the checkpoint, the name of a pin, or "@" for the newest checkpoint. If sessionName is "",
// name is an id in any session, or the name of a session, which stands for its newest checkpoint. Checkpoint returns ErrNotFound if
// there is none, and ErrCheckpointName for other names.
func (r Repo) Checkpoint(ctx context.Context, refs map[string]string, sessionName, name string) (string, error) {
	id, idErr := session.ParseCheckpointID(strings.ToUpper(name))
	if sessionName == "" && idErr != nil {
		sessionName, name = name, "@"
	}
	prefix := session.Prefix + "j/"
	if sessionName != "" {
		if session.ValidName(sessionName) != nil {
			return "", ErrCheckpointName
		}
		prefix = session.LanePrefix(sessionName)
	}
	var tips []string
	for _, ref := range slices.Sorted(maps.Keys(refs)) {
		if strings.HasPrefix(ref, prefix) {
			tips = append(tips, refs[ref])
		}
	}
	switch pin, ok := refs[session.PinPrefix(sessionName)+name]; {
	case ok && sessionName != "":
		return pin, nil
	case name == "@" && len(tips) > 0:
		return r.newest(ctx, tips)
	case name == "@" || idErr == nil && len(tips) == 0:
	case idErr == nil:
		return r.byID(ctx, tips, string(id))
	case session.ValidPin(name) != nil:
		return "", ErrCheckpointName
	}
	return "", fmt.Errorf("find checkpoint %.80q: %w", name, ErrNotFound)
}

// newest returns the tip whose checkpoint has the greatest id, which is that of the newest one.
func (r Repo) newest(ctx context.Context, tips []string) (commit string, err error) {
	greatest := ""
	list, err := r.checkpoints(ctx, tips, "--no-walk=unsorted")
	for _, p := range list {
		if p.id > greatest {
			greatest, commit = p.id, p.commit
		}
	}
	if err == nil && greatest == "" {
		err = fmt.Errorf("find newest checkpoint: %w", ErrNotFound)
	}
	return commit, err
}

// byID returns the commit of a checkpoint in one of the chains that begin at tips. The first parent of a checkpoint is the one
// before it.
func (r Repo) byID(ctx context.Context, tips []string, id string) (string, error) {
	// Text of a user can contain the line, too, so more than one commit may match.
	list, err := r.checkpoints(ctx, tips, "--first-parent", "--max-count=16", "--fixed-strings", "--grep="+checkpointTrailer+": "+id)
	for _, p := range list {
		if p.id == id {
			return p.commit, nil
		}
	}
	if err == nil {
		err = fmt.Errorf("find checkpoint %s: %w", id, ErrNotFound)
	}
	return "", err
}

// point is a checkpoint: its id, and its commit.
type point struct{ id, commit string }

// checkpoints returns the commits that git log selects.
func (r Repo) checkpoints(ctx context.Context, tips []string, args ...string) ([]point, error) {
	format := "--format=tformat:%H %(trailers:key=" + checkpointTrailer + ",valueonly,separator=%x2C)"
	cmd := r.command(ctx, append(append([]string{"log", format, "--no-show-signature", "--ignore-missing"}, args...), "--stdin")...)
	cmd.Stdin = strings.NewReader(strings.Join(tips, "\n") + "\n")
	out, _, err := output(cmd, maxMessages)
	if err != nil {
		return nil, err
	}
	var list []point
	for line := range strings.Lines(string(out)) {
		commit, id, _ := strings.Cut(strings.TrimSuffix(line, "\n"), " ")
		list = append(list, point{id, commit})
	}
	return list, nil
}
