package control

import (
	"encoding/json"
	"reflect"
	"testing"

	"github.com/artifactfs/artifactfs/control/names5"
)

// Replies of protocol 5 have other names for some fields, also for two that changed places.
func TestNamesOfProtocol5(t *testing.T) {
	status := Status{Mounts: []MountStatus{{Dir: "/m", SubmoduleOf: "/outer", Blobs: BlobStatus{Fetched: 3},
		Session: SessionStatus{SessionRemote: "/work.git", Checkpoints: 2, DivergedRefs: []DivergedRef{{RemoteRef: "refs/heads/a"}}}}}}
	session := SessionInfo{SessionStatus: SessionStatus{Name: "s", SessionRemote: "/work.git"}, Remote: "https://git.example/app.git",
		Parent: "p 1", Last: &Checkpoint{ID: "1", Session: "s"}}
	log, made := SessionLogReply{Checkpoints: []Checkpoint{{ID: "1"}}}, CheckpointReply{LeftOut: []LeftOut{{Path: "a"}}}
	for _, reply := range []any{status, session, log, made} {
		raw, err := json.Marshal(reply)
		if err != nil {
			t.Fatal(err)
		}
		typ := reflect.TypeOf(reply)
		old := names5.With(raw, typ)
		again := reflect.New(typ)
		if err := json.Unmarshal(names5.From(old, typ), again.Interface()); err != nil {
			t.Fatal(err)
		}
		if !reflect.DeepEqual(again.Elem().Interface(), reply) {
			t.Errorf("%v by the names of protocol 5 and back: got %+v, want %+v; as sent: %s", typ, again.Elem(), reply, old)
		}
	}
	raw, err := json.Marshal(session)
	if err != nil {
		t.Fatal(err)
	}
	var old map[string]any
	if err := json.Unmarshal(names5.With(raw, reflect.TypeOf(session)), &old); err != nil {
		t.Fatal(err)
	}
	if old["remote"] != "/work.git" || old["origin"] != "https://git.example/app.git" || old["session_remote"] != nil || old["from"] != "p 1" {
		t.Errorf("session by the names of protocol 5: got %v", old)
	}
	c := answering(t, `{"version":5,"result":{"mounts":[{"dir":"/m","blobs":{"hydrated":7},"session":{"points":2,"remote":"/work.git"}}]}}`)
	s, err := c.Status(t.Context())
	if err != nil || len(s.Mounts) != 1 || s.Mounts[0].Blobs.Fetched != 7 || s.Mounts[0].Session.Checkpoints != 2 ||
		s.Mounts[0].Session.SessionRemote != "/work.git" {
		t.Errorf("status of a daemon of protocol 5: got %+v, %v", s, err)
	}
}
