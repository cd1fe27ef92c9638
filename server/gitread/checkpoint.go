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

// ErrAmbiguous means that the beginning of an id is that of several checkpoints.
var ErrAmbiguous = errors.New("several checkpoints have an id that begins like this")

// The ids of checkpoints are ULIDs.
const (
	minCheckpointID  = 4 // digits of an abbreviated id
	maxCheckpointID  = 26
	checkpointDigits = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"
)

// checkpointTrailer is the trailer with the id of a checkpoint.
const checkpointTrailer = "Afs-Checkpoint"

// Checkpoint returns the commit of a checkpoint of a session of this program, as in doc/sessions.md. refs are the refs of the
// repository. name is the id of the checkpoint or its beginning, the name of a pin, or "@" for the newest checkpoint. If sessionName is
// "", name is the name of a session, which stands for its newest checkpoint, or an id in any session. Checkpoint returns ErrNotFound
// if there is none, ErrAmbiguous if an id has several ends, and ErrCheckpointName for other names.
func (r Repo) Checkpoint(ctx context.Context, refs map[string]string, sessionName, name string) (string, error) {
	id := strings.ToUpper(name)
	isID := len(id) >= minCheckpointID && len(id) <= maxCheckpointID && strings.Trim(id, checkpointDigits) == ""
	if sessionName == "" && (!isID || len(tipsOf(refs, session.LanePrefix(name))) > 0) {
		sessionName, name, isID = name, "@", false
	}
	prefix := session.Prefix + "j/"
	if sessionName != "" {
		if session.ValidName(sessionName) != nil {
			return "", ErrCheckpointName
		}
		if pin, ok := refs[session.PinPrefix(sessionName)+name]; ok {
			return pin, nil
		}
		prefix = session.LanePrefix(sessionName)
	}
	tips := tipsOf(refs, prefix)
	switch {
	case name != "@" && !isID && session.ValidPin(name) != nil:
		return "", ErrCheckpointName
	case len(tips) == 0:
	case name == "@":
		return r.newest(ctx, tips)
	case isID:
		return r.byID(ctx, tips, id)
	}
	return "", fmt.Errorf("find checkpoint %.80q: %w", name, ErrNotFound)
}

// tipsOf returns the ids of the refs whose names begin with prefix.
func tipsOf(refs map[string]string, prefix string) (tips []string) {
	for _, ref := range slices.Sorted(maps.Keys(refs)) {
		if strings.HasPrefix(ref, prefix) {
			tips = append(tips, refs[ref])
		}
	}
	return tips
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

// byID returns the commit of the checkpoint whose id begins with id, in one of the chains that begin at tips. The first parent of a
// checkpoint is the one before it.
func (r Repo) byID(ctx context.Context, tips []string, id string) (commit string, err error) {
	// Text of a user can contain the line, too, so more than one commit may match.
	list, err := r.checkpoints(ctx, tips, "--first-parent", "--max-count=64", "--fixed-strings", "--grep="+checkpointTrailer+": "+id)
	found := ""
	for _, p := range list {
		switch {
		case !strings.HasPrefix(p.id, id) || p.id == found: // a checkpoint may be in two lanes
		case found != "":
			return "", fmt.Errorf("find checkpoint %s: %w", id, ErrAmbiguous)
		default:
			found, commit = p.id, p.commit
		}
	}
	if err == nil && found == "" {
		err = fmt.Errorf("find checkpoint %s: %w", id, ErrNotFound)
	}
	return commit, err
}

// point is a checkpoint: its id, and its commit.
type point struct{ id, commit string }

// checkpoints returns the commits that git log selects.
func (r Repo) checkpoints(ctx context.Context, tips []string, args ...string) ([]point, error) {
	format := "--format=tformat:%H %(trailers:key=" + checkpointTrailer + ",valueonly,separator=%x2C)"
	cmd := r.ofCommits(ctx, append(append([]string{"log", format, "--no-show-signature", "--ignore-missing"}, args...), "--stdin")...)
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
