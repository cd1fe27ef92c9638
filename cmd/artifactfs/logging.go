package main

import (
	"fmt"
	"os"
	"path/filepath"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
)

// newLog opens the log that the global flags describe; level is what they leave open. close flushes it.
func (a *app) newLog(level zapcore.Level) (log *zap.Logger, close func(), err error) {
	if a.logLevel != "" {
		if err := level.Set(a.logLevel); err != nil {
			return nil, nil, fmt.Errorf("open log: %w", err)
		}
	} else if a.verbose && level > zapcore.InfoLevel {
		level = zapcore.InfoLevel
	}
	out := a.stderr
	if a.logFile != "" {
		if err := os.MkdirAll(filepath.Dir(a.logFile), 0o700); err != nil {
			return nil, nil, fmt.Errorf("open log: %w", err)
		}
		out, err = os.OpenFile(a.logFile, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
		if err != nil {
			return nil, nil, fmt.Errorf("open log: %w", err)
		}
	}
	conf := zap.NewProductionEncoderConfig()
	conf.EncodeTime = zapcore.RFC3339NanoTimeEncoder
	conf.EncodeDuration = zapcore.StringDurationEncoder
	encoder := zapcore.NewConsoleEncoder(conf)
	if a.logFormat == "json" {
		encoder = zapcore.NewJSONEncoder(conf)
	}
	log = zap.New(zapcore.NewCore(encoder, zapcore.Lock(out), level))
	return log, func() {
		if out != a.stderr {
			out.Close()
		}
	}, nil
}
