package agent

import (
	"reflect"
	"testing"

	"go.uber.org/zap"

	"github.com/artifactfs/artifactfs/control"
)

func TestOptionsOfTheRequestGoBeforeThoseOnRecord(t *testing.T) {
	a := New(Config{Session: "s", Dir: "/m", Writable: true, Log: zap.NewNop()})
	err := a.Configure(Settings{
		Home: t.TempDir(), Asked: control.SessionOptions{Remote: "https://u:sesame@127.0.0.1/s", Exclude: []string{"x"},
			TakeOver: true},
		Recorded: control.SessionOptions{Remote: control.RemoteNone, Policy: "interval=1m", Include: []string{"i"},
			Exclude: []string{"e"}, MaxFileSize: 7},
	})
	if err != nil {
		t.Fatal(err)
	}
	want := control.SessionOptions{Remote: "https://u:sesame@127.0.0.1/s", Policy: "interval=1m", Include: []string{"i"},
		Exclude: []string{"x"}, TakeOver: true, MaxFileSize: 7}
	if got := a.Options(); !reflect.DeepEqual(got, want) {
		t.Errorf("options in force: got %+v, want %+v", got, want)
	}
	if !a.Active() || !a.Automatic() || a.Guards() {
		t.Errorf("policy interval: got active %v, automatic %v, guards %v", a.Active(), a.Automatic(), a.Guards())
	}
	if err := a.Configure(Settings{Asked: control.SessionOptions{Include: []string{"["}}}); err == nil {
		t.Error("an invalid pattern was accepted")
	}
}
