package ui

import (
	"strings"
	"time"

	"github.com/artifactfs/artifactfs/session"
)

// profileView shows the purpose of a session, who is responsible for it, and which machine holds it.
type profileView struct {
	Title, Task, Owner string
	Tags               []string
	Expires            time.Time
	Hold, HoldBy       string // reason of the hold, and user who placed it; HoldBy is "" if there is no hold
	From               string // name of the parent session; "" if there is none
	// paths of the parent's checkpoint, and of the comparison with the parent; "" if the parent is not in this
	// repository
	Parent, Compare string
	Writer          string // machine that holds the session; "" if there is none
	Since           time.Time
}

// profile returns the profile of a session from its metadata.
func (p *place) profile(refs map[string]string, m session.Meta) profileView {
	v := profileView{Title: clip(m.Title, 200), Task: clip(m.Task, 4000), Owner: clip(m.Owner, 80), Expires: m.Expires}
	for _, tag := range m.Tags {
		v.Tags = append(v.Tags, clip(tag, 64))
	}
	if m.Profile.Held() {
		v.Hold, v.HoldBy = clip(m.Hold.Reason, 400), firstOf(clip(m.Hold.By, 80), "somebody")
	}
	parent, id, _ := strings.Cut(m.From, " ")
	if v.From = shown(parent); parent != "" && refs[session.MetaRef(parent)] != "" {
		v.Parent = p.sessionPath(parent) + query("at", id)
		v.Compare = p.path + "/compare" + query("p", parent+"@", "p", m.Session+"@")
	}
	for _, lane := range m.Lanes {
		if m.Held(lane.Name, session.Writer{}, time.Now()) != nil && lane.Since.After(v.Since) {
			v.Writer, v.Since = clip(lane.Writer.Host, 80), lane.Since
		}
	}
	return v
}
