package gitread

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/artifactfs/artifactfs/git/read"
	"github.com/artifactfs/artifactfs/session"
	"github.com/artifactfs/artifactfs/session/ulid"
)

// ErrCheckpointName means that a text cannot be the name of a checkpoint.
var ErrCheckpointName = errors.New("invalid name of a checkpoint")

// ErrAmbiguous means that the beginning of an id is that of several checkpoints.
var ErrAmbiguous = errors.New("several checkpoints have an id that begins like this")

const minCheckpointID = 4 // digits of an abbreviated id

// Trailers of a checkpoint: its id, and the commit of HEAD, which follows the id. A checkpoint without a commit lacks
// the latter.
const (
	checkpointTrailer = "Afs-Checkpoint"
	headTrailer       = "Afs-Head"
)

// Checkpoint returns the commit of a checkpoint of a session of this program (doc/internals/sessions/checkpoints.md).
// refs are the refs of the repository. name is the id of the checkpoint or its beginning, the name of a pin, or "@" for
// the newest checkpoint. If sessionName is "", name is the name of a session, which stands for its newest checkpoint,
// or an id in any session. Checkpoint returns read.ErrNotFound if there is none, ErrAmbiguous if an id has several
// ends, and ErrCheckpointName for other names.
func (r Repo) Checkpoint(ctx context.Context, refs map[string]string, sessionName, name string) (string, error) {
	id := strings.ToUpper(name)
	isID := len(id) >= minCheckpointID && len(id) <= ulid.Len && ulid.IsDigits(id)
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
	return "", fmt.Errorf("find checkpoint %.80q: %w", name, read.ErrNotFound)
}

// tipsOf returns the ids of the refs whose names begin with prefix.
func tipsOf(refs map[string]string, prefix string) (tips []string) {
	var names []string
	for ref := range refs { // there can be many, so only those that are returned are sorted
		if strings.HasPrefix(ref, prefix) {
			names = append(names, ref)
		}
	}
	slices.Sort(names)
	for _, ref := range names {
		tips = append(tips, refs[ref])
	}
	return tips
}

// newest returns the tip whose checkpoint has the greatest id, which is that of the newest one.
func (r Repo) newest(ctx context.Context, tips []string) (commit string, err error) {
	greatest := ""
	list, err := r.checkpoints(ctx, tips, "--no-walk=unsorted")
	for _, p := range list {
		if p.ID > greatest {
			greatest, commit = p.ID, p.Commit
		}
	}
	if err == nil && greatest == "" {
		err = fmt.Errorf("find newest checkpoint: %w", read.ErrNotFound)
	}
	return commit, err
}

// byID returns the commit of the checkpoint whose id begins with id, in one of the chains that begin at tips. The first
// parent of a checkpoint is the one before it.
func (r Repo) byID(ctx context.Context, tips []string, id string) (commit string, err error) {
	// Text of a user can contain the line, too, so more than one commit may match.
	args := []string{"--first-parent", "--max-count=64", "--fixed-strings", "--grep=" + checkpointTrailer + ": " + id}
	// An id begins with the time of the checkpoint. So older commits, such as the user's history before the session, are
	// read only if there is no match, because the clock may have been wrong when the id was made.
	oldest := session.CheckpointID(id + strings.Repeat("0", ulid.Len-len(id))).Time()
	list, err := r.checkpoints(ctx, tips, append(args, since(oldest)...)...)
	if err == nil && len(list) == 0 {
		list, err = r.checkpoints(ctx, tips, args...)
	}
	found := ""
	for _, p := range list {
		switch {
		case !strings.HasPrefix(p.ID, id) || p.ID == found: // a checkpoint may be in two lanes
		case found != "":
			return "", fmt.Errorf("find checkpoint %s: %w", id, ErrAmbiguous)
		default:
			found, commit = p.ID, p.Commit
		}
	}
	if err == nil && found == "" {
		err = fmt.Errorf("find checkpoint %s: %w", id, read.ErrNotFound)
	}
	return commit, err
}

// Point is a checkpoint: its id, the id of its commit, and the commit that HEAD was at, "" for none.
type Point struct{ ID, Commit, Head string }

// Checkpoints returns the ids of all checkpoints of a session, the oldest first. refs are the refs of the repository. A
// checkpoint is older than the session only if clocks differ, so the history of the user's commits before the time
// began is not read; the zero time means that the age of the session is unknown. If the output of git is longer than
// its limit, the list lacks the oldest checkpoints.
func (r Repo) Checkpoints(ctx context.Context, refs map[string]string, sessionName string,
	began time.Time) ([]Point, error) {
	tips := tipsOf(refs, session.LanePrefix(sessionName))
	if len(tips) == 0 {
		return nil, nil
	}
	args := []string{"--first-parent", "--fixed-strings", "--grep=" + checkpointTrailer + ": "}
	list, err := r.checkpoints(ctx, tips, append(args, since(began)...)...)
	if err != nil {
		return nil, err
	}
	list = slices.DeleteFunc(list, func(p Point) bool { _, err := session.ParseCheckpointID(p.ID); return err != nil })
	slices.SortFunc(list, func(a, b Point) int { return strings.Compare(a.ID, b.ID) })
	return slices.CompactFunc(list, func(a, b Point) bool { return a.ID == b.ID }), nil
}

// Newest returns the newest checkpoint of each session, by its name. It reads only the newest segment of each lane.
func (r Repo) Newest(ctx context.Context, refs map[string]string) (map[string]Point, error) {
	last := map[string]string{} // ref of the newest segment by the prefix of the lane
	for ref := range refs {
		if lane, _, ok := splitSegment(ref); ok && ref > last[lane] {
			last[lane] = ref
		}
	}
	of := map[string][]string{} // names of sessions by the tips of their lanes
	for _, ref := range last {
		_, name, _ := splitSegment(ref)
		of[refs[ref]] = append(of[refs[ref]], name)
	}
	newest := map[string]Point{}
	if len(of) == 0 {
		return newest, nil
	}
	tips := slices.Sorted(maps.Keys(of))
	list, err := r.checkpoints(ctx, tips, "--no-walk=unsorted")
	if err != nil && ctx.Err() == nil { // one tip that git cannot read must not hide the others
		list, err = oneByOne(ctx, r, tips)
	}
	for _, p := range list {
		for _, name := range of[p.Commit] {
			if p.ID > newest[name].ID {
				newest[name] = p
			}
		}
	}
	return newest, err
}

// oneByOne returns the checkpoints among commits, without those that are too large to be read.
func oneByOne(ctx context.Context, r Repo, commits []string) (list []Point, err error) {
	err = r.Contents(ctx, commits, maxMeta, func(_ int, c read.Content) {
		if p, err := CheckpointOf(c); err == nil && c.Bytes != nil {
			list = append(list, Point{string(p.ID), c.ID, p.Head.String()})
		}
	})
	return list, err
}

// splitSegment returns the lane of the ref of a segment, as a prefix of the ref, and the name of its session.
func splitSegment(ref string) (lane, sessionName string, ok bool) {
	rest, ok := strings.CutPrefix(ref, session.Prefix+"j/")
	sessionName, rest, two := strings.Cut(rest, "/")
	segment := strings.LastIndexByte(rest, '/')
	if !ok || !two || segment < 0 {
		return "", "", false
	}
	return ref[:len(ref)-len(rest)+segment], sessionName, true
}

// maxCounted is the maximum number of checkpoints that CountCheckpoints reads.
const maxCounted = 20_000

// CountCheckpoints returns the number of checkpoints of each session, by its name. The oldest session began at the time
// began (see Checkpoints). more reports that the sessions have more than 20,000 checkpoints together, of which only the
// newest are counted.
func (r Repo) CountCheckpoints(ctx context.Context, refs map[string]string, sessions []string, began time.Time) (
	counts map[string]int, more bool, err error) {
	var tips []string
	for _, name := range sessions {
		tips = append(tips, tipsOf(refs, session.LanePrefix(name))...)
	}
	counts = map[string]int{}
	if len(tips) == 0 {
		return counts, false, nil
	}
	// Each checkpoint has a trailer with its id, by which git log finds it, and a trailer with its session, which is
	// counted.
	cmd := r.OfCommits(ctx,
		append([]string{"log", "--first-parent", "--fixed-strings", "--grep=" + checkpointTrailer + ": ",
			"--no-show-signature", "--ignore-missing", "--max-count=" + strconv.Itoa(maxCounted),
			"--format=tformat:%(trailers:key=Afs-Session,valueonly,separator=%x2C)", "--stdin"}, since(began)...)...)
	cmd.Stdin = strings.NewReader(strings.Join(tips, "\n") + "\n")
	out, cut, err := read.Output(cmd, read.MaxMessages)
	if err != nil {
		return nil, false, err
	}
	n := 0
	for line := range strings.Lines(string(out)) {
		counts[strings.TrimSuffix(line, "\n")]++
		n++
	}
	return counts, cut || n == maxCounted, nil
}

// skewOfClocks is the maximum difference between the clocks of a session's machines that is allowed for.
const skewOfClocks = 24 * time.Hour

// since returns the arguments of git log that leave out commits before a time, if it is known.
func since(began time.Time) []string {
	if began.Unix() < 1e9 {
		return nil
	}
	return []string{"--since=" + strconv.FormatInt(began.Add(-skewOfClocks).Unix(), 10)}
}

// checkpoints returns the commits that git log selects.
func (r Repo) checkpoints(ctx context.Context, tips []string, args ...string) ([]Point, error) {
	format := "--format=tformat:%H %(trailers:key=" + checkpointTrailer + ",key=" + headTrailer +
		",valueonly,separator=%x20)"
	cmd := r.OfCommits(ctx, append(append([]string{"log", format, "--no-show-signature", "--ignore-missing"}, args...),
		"--stdin")...)
	cmd.Stdin = strings.NewReader(strings.Join(tips, "\n") + "\n")
	out, _, err := read.Output(cmd, read.MaxMessages)
	if err != nil {
		return nil, err
	}
	var list []Point
	for line := range strings.Lines(string(out)) {
		line, whole := strings.CutSuffix(line, "\n")
		commit, values, _ := strings.Cut(line, " ")
		id, head, _ := strings.Cut(values, " ")
		if whole { // the last line is incomplete if the output was cut off
			list = append(list, Point{id, commit, head})
		}
	}
	return list, nil
}
