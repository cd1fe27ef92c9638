package catalog

import (
	"github.com/artifactfs/artifactfs/control"
	"github.com/artifactfs/artifactfs/control/sessionlink"
	"github.com/artifactfs/artifactfs/host/statedir"
)

// addCommands adds to the reply the link of the checkpoint, and the commands that fork the session from the checkpoint
// and resume the session.
func (o *opened) addCommands(reply *control.SessionShowReply) {
	reply.ForkCommand = "artifactfs session fork " + control.ShellWord(o.Session+"@"+reply.ID) + " DIR"
	reply.ResumeCommand = "artifactfs session resume " + control.ShellWord(o.Session) + " DIR"
	if reply.SessionRemote = statedir.ShownRemote(o.record.Carried.Remote, o.home, o.record); reply.SessionRemote == "" {
		return
	}
	link := sessionlink.Link{Remote: reply.SessionRemote, Session: o.Session, Checkpoint: reply.ID}
	reply.Link = link.String()
	reply.ForkCommand = "artifactfs session fork " + control.ShellWord(reply.Link) + " DIR"
	link.Checkpoint = ""
	reply.ResumeCommand = "artifactfs session resume " + control.ShellWord(link.String()) + " DIR"
}
