"""Why a script trains below its limit: observations and limits in, findings out. Pure."""
