package session

import (
	"bytes"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/artifactfs/artifactfs/object"
)

// ErrNotPoint reports a commit that is no checkpoint.
var ErrNotPoint = errors.New("not a checkpoint")

// who is author and committer of all that is made here. It is nobody: who did the work is not known to the file system.
const who = "artifactfs <artifactfs@localhost>"

// Trailers of a checkpoint's message. Numbers are decimal; what is empty is left out.
const (
	trailerID      = "Afs-Checkpoint"
	trailerSession = "Afs-Session"
	trailerLane    = "Afs-Lane"
	trailerSegment = "Afs-Segment"
	trailerReason  = "Afs-Reason"
	trailerHead    = "Afs-Head"
	trailerBranch  = "Afs-Branch"
	trailerBase    = "Afs-Base"
	trailerPrev    = "Afs-Prev"
	trailerState   = "Afs-State"
	trailerChanged = "Afs-Changed"
	trailerBytes   = "Afs-Bytes"
	trailerLeft    = "Afs-Excluded"
)

// Encode returns the contents of the checkpoint's commit. Parent is the checkpoint before in the same segment; zero: there is none.
func (p Point) Encode(parent object.ID) []byte {
	var b bytes.Buffer
	fmt.Fprintf(&b, "tree %s\n", p.Tree)
	if !parent.IsZero() {
		fmt.Fprintf(&b, "parent %s\n", parent)
	}
	fmt.Fprintf(&b, "parent %s\n", p.State)
	signed(&b, p.Time)
	message := strings.TrimSpace(strings.ReplaceAll(p.Message, "\x00", ""))
	if message == "" {
		message = autoSubject(p.Reason)
	}
	fmt.Fprintf(&b, "\n%s\n\n", message)
	for _, t := range []struct{ key, value string }{
		{trailerID, string(p.ID)}, {trailerSession, p.Session}, {trailerLane, p.Lane}, {trailerSegment, strconv.Itoa(p.Segment)},
		{trailerReason, string(p.Reason)}, {trailerHead, p.Head.String()}, {trailerBranch, p.Branch}, {trailerBase, p.Base.String()},
		{trailerPrev, string(p.Prev)}, {trailerState, p.State.String()}, {trailerChanged, strconv.FormatInt(p.Changed, 10)},
		{trailerBytes, strconv.FormatInt(p.Bytes, 10)}, {trailerLeft, strconv.FormatInt(p.Left, 10)},
	} {
		if t.value != "" {
			fmt.Fprintf(&b, "%s: %s\n", t.key, t.value)
		}
	}
	return b.Bytes()
}

func autoSubject(r Reason) string { return "checkpoint: " + string(r) }

// signed writes the lines of author and committer, and the empty one behind them is the caller's.
func signed(b *bytes.Buffer, at time.Time) {
	for _, role := range []string{"author", "committer"} {
		fmt.Fprintf(b, "%s %s %d +0000\n", role, who, at.Unix())
	}
}

// ParsePoint reads the commit of a checkpoint. Its id is not looked at, but kept as Point.Commit.
func ParsePoint(f object.Format, id object.ID, content []byte) (Point, error) {
	info, err := object.ParseCommit(f, content)
	if err != nil {
		return Point{}, fmt.Errorf("read checkpoint %s: %w", id, err)
	}
	_, text, _ := strings.Cut(string(content), "\n\n")
	message, trailers := splitTrailers(text)
	p := Point{Commit: id, Tree: info.Tree, Time: info.Committed.UTC()}
	bad := func(key string, err error) (Point, error) {
		return Point{}, fmt.Errorf("read checkpoint %s: %w: %s: %w", id, ErrNotPoint, key, err)
	}
	if p.ID, err = ParsePointID(trailers[trailerID]); err != nil {
		return bad(trailerID, err)
	}
	for key, to := range map[string]*object.ID{trailerHead: &p.Head, trailerBase: &p.Base, trailerState: &p.State} {
		if v := trailers[key]; v != "" {
			if *to, err = object.ParseIDOf(f, v); err != nil {
				return bad(key, err)
			}
		}
	}
	if len(info.Parents) == 0 || info.Parents[len(info.Parents)-1] != p.State || len(info.Parents) > 2 {
		return bad(trailerState, errors.New("it is not the last of at most two parents"))
	}
	for key, to := range map[string]*int64{trailerChanged: &p.Changed, trailerBytes: &p.Bytes, trailerLeft: &p.Left} {
		if *to, err = parseCount(trailers[key]); err != nil {
			return bad(key, err)
		}
	}
	segment, err := parseCount(trailers[trailerSegment])
	if err != nil || segment > maxSegment {
		return bad(trailerSegment, errors.Join(err, errors.New("no number of a segment")))
	}
	p.Segment = int(segment)
	if prev := trailers[trailerPrev]; prev != "" {
		if p.Prev, err = ParsePointID(prev); err != nil {
			return bad(trailerPrev, err)
		}
	}
	p.Session, p.Lane, p.Branch, p.Reason = trailers[trailerSession], trailers[trailerLane], trailers[trailerBranch], Reason(trailers[trailerReason])
	if message != autoSubject(p.Reason) {
		p.Message = message
	}
	return p, nil
}

// PointParent returns the checkpoint before in the same segment, from the content of a checkpoint's commit; zero: there is none.
func PointParent(f object.Format, content []byte) (object.ID, error) {
	info, err := object.ParseCommit(f, content)
	if err != nil {
		return object.ID{}, err
	}
	if len(info.Parents) < 2 {
		return object.ID{}, nil
	}
	return info.Parents[0], nil
}

// maxSegment is the highest number of a segment that SegmentRef writes with six digits.
const maxSegment = 999_999

// parseCount reads what is not negative; "" is 0.
func parseCount(text string) (int64, error) {
	if text == "" {
		return 0, nil
	}
	n, err := strconv.ParseInt(text, 10, 64)
	if err == nil && n < 0 {
		err = errors.New("negative")
	}
	return n, err
}

// splitTrailers takes the last paragraph of a message for its trailers. What a user wrote stands in front of it, whatever
// it looks like.
func splitTrailers(text string) (message string, trailers map[string]string) {
	text = strings.TrimSuffix(text, "\n")
	last := text
	if i := strings.LastIndex(text, "\n\n"); i >= 0 {
		message, last = text[:i], text[i+2:]
	}
	trailers = map[string]string{}
	for line := range strings.SplitSeq(last, "\n") {
		if key, value, ok := strings.Cut(line, ": "); ok {
			trailers[key] = value
		}
	}
	return message, trailers
}
