"""From a plan to what binds both ends: releases, their noise, their price."""
